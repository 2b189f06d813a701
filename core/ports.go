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
	// Coalesced means that a waiting event with an equal key also covers this event.
	Coalesced Outcome = "coalesced"
	// Dropped means that the event is not kept. A resync replaces it, if there is room for a
	// resync.
	Dropped Outcome = "dropped"
)

// Acceptor receives events from a change source. An outbox is an Acceptor.
//
// Accept must return immediately in every state of the control plane, because an API server may be
// waiting for it. Calls may run concurrently. The event shares no memory with the change from which
// it was made.
type Acceptor interface {
	Accept(manager Manager, event WatchEvent) Outcome
}

// AcceptorFunc adapts a function to an [Acceptor].
type AcceptorFunc func(manager Manager, event WatchEvent) Outcome

// Accept calls f.
func (f AcceptorFunc) Accept(manager Manager, event WatchEvent) Outcome { return f(manager, event) }

// Forwarder carries batches to a manager in the control plane.
//
// Forward blocks until the receiver has acknowledged or refused the batch. If ctx ends first,
// Forward returns ctx.Err(); callers should set a deadline. Calls may run concurrently, even for
// the same manager. Forward does not change the batch, and does not use it after it has returned.
// For an empty batch it returns nil without I/O. If the transport cannot carry heartbeats, Forward
// omits them.
//
// The forwarder classifies errors, and the caller retries. [IsPermanent] reports that no retry can
// deliver an event. [RetryAfter] returns the delay that the receiver requests, and [ReasonOf] the
// cause. If the sender is refused, the error wraps [ErrUnauthenticated] or [ErrForbidden]. The
// error wraps [ErrNotReady] if the receiver cannot take events now, and [ErrUnknownManager] if the
// receiver does not serve the manager.
//
// [EventErrors] lists the events that failed individually; all other events were delivered.
// [ErrTooLarge] means that the caller must send the events in smaller batches. If only the first
// events of a batch were sent, [ErrNotSent] marks the rest. Any other error concerns the manager or
// the path: no event is known to be delivered. Receivers must accept duplicates.
type Forwarder interface {
	Forward(ctx context.Context, manager Manager, batch Batch) error
}

// ForwarderFunc adapts a function to a [Forwarder].
type ForwarderFunc func(ctx context.Context, manager Manager, batch Batch) error

// Forward calls f.
func (f ForwarderFunc) Forward(ctx context.Context, manager Manager, batch Batch) error {
	return f(ctx, manager, batch)
}

// Verifier decides whether a peer may trigger an event.
//
// Verify returns nil to let the event pass. If the error wraps [ErrUnauthenticated] or
// [ErrForbidden], the event is refused. Any other error, such as [ErrNotReady], means that the
// verdict is not known yet: the sender retries, so a broken verifier loses no event. [ReasonOf]
// returns the cause.
//
// Verify must return promptly instead of waiting for a cold cache. Calls may run concurrently.
// Verify must not change the event, and must reject a peer without an identity. For a heartbeat,
// event is a resync without an owner.
type Verifier interface {
	Verify(ctx context.Context, peer Peer, event *WatchEvent) error
}

// VerifierFunc adapts a function to a [Verifier].
type VerifierFunc func(ctx context.Context, peer Peer, event *WatchEvent) error

// Verify calls f.
func (f VerifierFunc) Verify(ctx context.Context, peer Peer, event *WatchEvent) error {
	return f(ctx, peer, event)
}

// RequestVerifier is an optional interface for a [Verifier] that remembers something while it
// verifies one request, such as the domain of its sender. A receiver calls ForRequest for each
// request. The result verifies the events of the request, one after the other. A verifier that
// wraps another verifier should also implement RequestVerifier.
type RequestVerifier interface {
	ForRequest() Verifier
}

// Validator is an optional interface for a [Verifier]. The constructor of a receiver calls Validate
// and returns its error. A verifier that wraps another verifier should also implement Validator.
type Validator interface {
	Validate() error
}

// Handler receives verified events on the side of the operator.
//
// Handle returns nil once the event is enqueued. The acknowledgement that the sender then gets is
// final: a handler must not return nil for an event that it can still lose. It must not wait for
// the work that the event causes. Handle is called concurrently. ctx ends when the sender
// disconnects or the listener stops.
//
// The sender retries after any error. An error that wraps [ErrNotReady] concerns the whole replica,
// for example because it does not lead. If the handler has a Ready method that returns nil, such an
// error concerns only the event, as any other error does.
type Handler interface {
	Handle(ctx context.Context, d Delivery) error
}

// Readier is an optional interface for a [Handler]. On a replica of the operator that does not
// lead, Ready returns an error that wraps [ErrNotReady]. The runtime then connects to other
// replicas until it reaches the leader. A receiver calls Ready before it acknowledges a heartbeat,
// and after Handle has returned [ErrNotReady].
type Readier interface {
	Ready() error
}

// Rechecker is an optional interface for a [Handler] that observes which objects its reconciles
// read. RecheckAfter returns a delay, or 0 while the handler does not check reads. After Handle
// returned nil for an event with a UID, the handler requests another reconcile once the delay is
// over, unless a reconcile has read the write by then. A receiver announces the delay to its
// senders, which may then send events before the write is committed.
//
// RecheckAfter is called before Handle, possibly concurrently, and must not block. The delay
// applies to all later calls of Handle that return nil.
type Rechecker interface {
	RecheckAfter() time.Duration
}

// HandlerFunc adapts a function to a [Handler].
type HandlerFunc func(ctx context.Context, d Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d Delivery) error { return f(ctx, d) }

// Filter decides whether a change matters to a watch. It must neither keep nor alter the change,
// and is called concurrently.
type Filter func(*Change) bool
