package core

import (
	"context"
	"time"
)

// Outcome is the fate of an event that was offered to an [Acceptor].
type Outcome string

const (
	// Accepted means that the event is kept until it is acknowledged.
	Accepted Outcome = "accepted"
	// Coalesced means that a waiting event with an equal key stands for this one, too.
	Coalesced Outcome = "coalesced"
	// Dropped means that the event is not kept. A resync stands in for it where there is room for
	// one.
	Dropped Outcome = "dropped"
)

// Acceptor takes events from a change source. An outbox is one.
//
// Accept returns at once in every state of the control plane: an API server may wait for it. It is
// called concurrently. The event shares no memory with the change that it was made from.
type Acceptor interface {
	Accept(manager Manager, event WatchEvent) Outcome
}

// AcceptorFunc makes a function an [Acceptor].
type AcceptorFunc func(manager Manager, event WatchEvent) Outcome

// Accept calls f.
func (f AcceptorFunc) Accept(manager Manager, event WatchEvent) Outcome { return f(manager, event) }

// Forwarder carries batches to a manager in the control plane.
//
// Forward blocks until the receiver has acknowledged or refused the batch, or ctx ends; the caller
// bounds it with a deadline. It may be called concurrently, also for one manager. It neither keeps
// nor changes the batch after it returned. An empty batch is a success without I/O. A transport
// that cannot carry heartbeats leaves them out.
//
// The forwarder classifies, the caller retries. [IsPermanent] marks an event that no later attempt
// can deliver, [RetryAfter] is the wait that the receiver asks for, [Reason] is the cause. A
// refused sender gets [ErrUnauthenticated] or [ErrForbidden]. [ErrNotReady] is of a receiver that
// cannot take events now, [ErrUnknownManager] of one that does not serve the manager. The end of
// ctx gives the error of ctx.
//
// [EventErrors] means that some events failed for themselves, and that all others were delivered.
// [ErrTooLarge] is of a batch that must be smaller: the caller sends its events in smaller ones.
// Any other error belongs to the manager or to the path: no event is known to be delivered. A
// forwarder that can send only the beginning of a batch names the rest with [ErrNotSent].
// Receivers must expect an event more than once.
type Forwarder interface {
	Forward(ctx context.Context, manager Manager, batch Batch) error
}

// ForwarderFunc makes a function a [Forwarder].
type ForwarderFunc func(ctx context.Context, manager Manager, batch Batch) error

// Forward calls f.
func (f ForwarderFunc) Forward(ctx context.Context, manager Manager, batch Batch) error {
	return f(ctx, manager, batch)
}

// Verifier decides whether a peer may trigger an event.
//
// Verify returns nil to let the event pass. An error that wraps [ErrUnauthenticated] or
// [ErrForbidden] refuses the event. Any other error, such as [ErrNotReady], means that the answer
// is not known yet, so that a broken verifier loses nothing. [Reason] names the cause.
//
// Verify returns promptly rather than wait for a cold cache, is called concurrently, and does not
// change the event. A peer without identity must not pass. For a heartbeat the event is a resync
// without owner.
type Verifier interface {
	Verify(ctx context.Context, peer Peer, event *WatchEvent) error
}

// VerifierFunc makes a function a [Verifier].
type VerifierFunc func(ctx context.Context, peer Peer, event *WatchEvent) error

// Verify calls f.
func (f VerifierFunc) Verify(ctx context.Context, peer Peer, event *WatchEvent) error {
	return f(ctx, peer, event)
}

// RequestVerifier is an optional method of a [Verifier] that remembers something while it verifies
// one request, such as the domain of its sender. A receiver calls ForRequest for each request. The
// result verifies the events of the request, one after the other. A verifier that wraps another
// should have the method, too.
type RequestVerifier interface {
	ForRequest() Verifier
}

// Validator is an optional method of a [Verifier]. The constructor of a receiver calls Validate,
// and fails with its error. A verifier that wraps another should have the method, too.
type Validator interface {
	Validate() error
}

// Handler takes verified events on the side of the operator.
//
// Handle returns nil once the event is enqueued. The acknowledgement that the sender then gets is
// final: a handler must not return nil for an event that it can still lose. It must not wait for
// the work that the event causes. Handle is called concurrently. ctx ends when the sender
// disconnects or the listener stops.
//
// The sender retries after any error. An error that wraps [ErrNotReady] belongs to the whole
// replica, such as one that does not lead. If the handler has a Ready method that returns nil, such
// an error belongs to the event alone, as any other error does.
type Handler interface {
	Handle(ctx context.Context, d Delivery) error
}

// Readier is an optional method of a [Handler]. A replica of the operator that does not lead
// returns an error that wraps [ErrNotReady]. The runtime then connects to another replica, until it
// finds the one that leads. Ready is called before a heartbeat is acknowledged, and when Handle
// returns [ErrNotReady].
type Readier interface {
	Ready() error
}

// Rechecker is an optional method of a [Handler] that learns which objects its reconciles read.
// RecheckAfter returns the time after which the handler requests the reconcile of an event with a
// UID again, unless a reconcile has read the write by then. It is 0 if the handler does not check,
// or does not yet. A receiver passes the time on, and its senders may then send an event before
// the write is committed.
//
// RecheckAfter is called concurrently, before Handle, and must not block. The time holds for all
// later calls of Handle that return nil.
type Rechecker interface {
	RecheckAfter() time.Duration
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(ctx context.Context, d Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d Delivery) error { return f(ctx, d) }

// Filter decides whether a change matters to a watch. It must neither keep nor alter the change,
// and is called concurrently.
type Filter func(*Change) bool
