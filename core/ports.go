package core

import "context"

// Forwarder carries events to a manager in the control plane.
//
// Forward blocks until the receiver has acknowledged every event, has refused, or ctx ends; the caller bounds it with
// a deadline. It may be called concurrently, also for one manager. It neither keeps nor changes events after it
// returned, and an empty slice is a success without I/O.
//
// The forwarder classifies, the caller retries: an error that [IsPermanent] condemns the events, [RetryAfter] names the
// wait that the receiver asked for, [Reason] the cause. A receiver that refuses the sender gives an error that wraps
// [ErrUnauthenticated] or [ErrForbidden], one that is not ready [ErrNotReady], and the end of ctx the error of ctx.
//
// [EventErrors] means that the events it does not name were delivered, and has for each that it names an error as
// above; any other error means that none is known to be. Receivers must expect an event more than once.
type Forwarder interface {
	Forward(ctx context.Context, manager Manager, events []WatchEvent) error
}

// ForwarderFunc makes a function a [Forwarder].
type ForwarderFunc func(ctx context.Context, manager Manager, events []WatchEvent) error

// Forward calls f.
func (f ForwarderFunc) Forward(ctx context.Context, manager Manager, events []WatchEvent) error {
	return f(ctx, manager, events)
}

// Verifier decides whether a peer may trigger what an event asks for.
//
// Verify returns nil to let the event pass. An error that wraps [ErrUnauthenticated] or [ErrForbidden] refuses it; one
// that wraps [ErrNotReady] says that the answer is not known yet, and any other error is taken as that, so that nothing
// is lost to a broken verifier. [Reason] names the cause.
//
// It must return promptly rather than wait for a cold cache, is called concurrently, and must not change the event. A
// peer without identity must not pass.
type Verifier interface {
	Verify(ctx context.Context, peer Peer, event *WatchEvent) error
}

// VerifierFunc makes a function a [Verifier].
type VerifierFunc func(ctx context.Context, peer Peer, event *WatchEvent) error

// Verify calls f.
func (f VerifierFunc) Verify(ctx context.Context, peer Peer, event *WatchEvent) error {
	return f(ctx, peer, event)
}

// Handler takes verified events on the side of the operator.
//
// Handle returns nil once the event is enqueued: the acknowledgement that the sender then gets is final, so a handler
// must not return nil for an event it can still lose. It must not wait for the work that the event causes. An error is
// answered as "not ready", and the sender tries again. It is called concurrently; ctx ends when the sender has gone or
// the listener stops.
type Handler interface {
	Handle(ctx context.Context, d Delivery) error
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(ctx context.Context, d Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d Delivery) error { return f(ctx, d) }

// Filter decides whether a change matters to a watch. It must not keep or change what it is given, and is called
// concurrently.
type Filter func(*Change) bool
