// Package hook has the reports of the parts of Runtime Watcher to their hooks: one struct for each
// kind of report. A later version may add fields, which breaks no hook.
//
// A hook returns immediately, because an API server, a runtime or a lane of events waits for it. It
// may be called concurrently. A part skips a hook that is nil.
//
// Strings are metric labels: each has a small set of values. Durations are wall time.
//
// Two kinds of hook have no struct. A gauge gets a change (1 or -1), and a switch gets its state.
// Both are complete with this one value.
package hook

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Answer is the answer to a request of a runtime.
type Answer struct {
	// Contract and Manager are empty when the request names none that is known.
	Contract contract.Version
	Manager  core.Manager
	// Status is that of HTTP.
	Status int
	// Reason is empty when the event was taken, unless an observing verifier took it.
	Reason string
	// Took is the time from the header of the request to the answer.
	Took time.Duration
}

// HandshakeFailure is a connection with a failed TLS handshake.
type HandshakeFailure struct {
	// Cause is why the handshake failed. The value "untrusted" is an example.
	Cause string
}

// ConnectionDrop is a connection that a server closed for its limit of connections.
type ConnectionDrop struct {
	// Server is the server of an agent: "webhook" or "metrics". A listener leaves it empty.
	Server string
	// Reason is "displaced" or "no_slot".
	Reason string
}

// Listener has the optional hooks of a listener.
type Listener struct {
	// Answered is called after each request.
	Answered func(Answer)
	// InFlight is called with 1 before the verifier and the handler are called for a request, and
	// with -1 after.
	InFlight func(delta int)
	// HandshakeFailed is called for each failed TLS handshake.
	HandshakeFailed func(HandshakeFailure)
	// ConnectionDropped is called for each connection that was closed for Options.MaxConnections.
	ConnectionDropped func(ConnectionDrop)
}

// Review is an answered admission review. The write is allowed with each decision.
type Review struct {
	Manager core.Manager
	// Decision is the fate of the change:
	//
	//   - "accepted", "coalesced", "dropped": the outcome of the acceptor (see [core.Outcome])
	//   - "unchanged": an update did not change the watched part of the object
	//   - "irrelevant": the filter refuses a write that is no update
	//   - "dry_run": the write is not persisted
	//   - "no_owner": the object has no valid owner, but an owner is required
	//   - "no_name": the object has no name, or one that is too long for an event. An update or a
	//     deletion that names no object at all is accepted as a resync instead
	//   - "unread": there was no memory to read the review; a resync is accepted instead
	//   - "failed": something panicked, see the log; a resync is accepted instead
	Decision string
	// Took is the time from the beginning of the request, before its body is read, to the answer.
	Took time.Duration
}

// Refusal is a request to the webhook that is answered with another status than 200.
type Refusal struct {
	// Status is that of HTTP.
	Status int
	// Reason is one of these values:
	//
	//   - "unknown_path", "method": not POST /validate/<manager>
	//   - "manager": an invalid manager, or one that the options of the webhook refuse
	//   - "media_type": not plain application/json
	//   - "too_large", "unreadable_body": the body is above the limit, or did not arrive
	//   - "busy": no memory for the body
	//   - "malformed_review", "unsupported_version": not a review of admission.k8s.io/v1
	//   - "internal": a panic
	Reason string
	Took   time.Duration
}

// OwnerProblem is a watched object without a valid owner.
type OwnerProblem struct {
	Manager core.Manager
	// Problem is "malformed" for an owner annotation that is not <namespace>/<name>. It is
	// "missing" for an object without owner, where one is required.
	Problem string
}

// Panic is a panic that the webhook recovered.
type Panic struct {
	// Place is where it panicked:
	//
	//   - "filter": in a filter; the change matters
	//   - "acceptor": in the acceptor, or in a hook before it; a resync is accepted
	//   - "request": while the request was read, which is answered 500
	//   - "hooks": in another hook, or in a logger after the answer
	Place string
}

// Attempt is one call of a forwarder by an outbox.
type Attempt struct {
	Manager core.Manager
	// Events is the number of events in the batch, 0 for a heartbeat alone.
	Events int
	Took   time.Duration
	// Err is nil if the receiver took the whole batch, and otherwise as [core.Forwarder] documents.
	Err error
}

// Connection is an attempt to make a TCP connection to the control plane.
type Connection struct {
	// Err is nil for a connection. Otherwise its [core.Reason] is a metric label such as "dns".
	Err error
}

// Disconnection is the end of a connection to the control plane that still took requests.
type Disconnection struct {
	// Lasted is the time since the connection was made.
	Lasted time.Duration
}

// Retry is a short retry of a forwarder, within one attempt.
type Retry struct {
	// Status is the HTTP status of the answer before, 0 when there was no answer.
	Status int
}

// UnknownContract is an answer as of a control plane that does not know the contract.
type UnknownContract struct {
	Manager core.Manager
	// Err is that of the forwarder.
	Err error
}

// Fallback is a change of the forwarder that a fallback uses.
type Fallback struct {
	Manager core.Manager
	// Older means that the older forwarder is in use.
	Older bool
}

// ContractInUse is the contract with which the events to a manager travel from now on.
type ContractInUse struct {
	Manager  core.Manager
	Contract contract.Version
}

// Stall is a time for which an agent did not run.
type Stall struct {
	Took time.Duration
}

// CanaryProbe is a write of the canary.
type CanaryProbe struct {
	// State is the result of the write.
	State core.CanaryState
	// Took is the time of the write.
	Took time.Duration
}

// Observation is a change of an object that an informer observed.
type Observation struct {
	Manager core.Manager
	// Decision is the fate of the change:
	//
	//   - "accepted", "coalesced", "dropped": the outcome of the acceptor (see [core.Outcome])
	//   - "unchanged": the filter refuses an update, or the watched part is the same
	//   - "irrelevant": the filter refuses another change
	//   - "no_owner": the object has no valid owner, but an owner is required
	//   - "no_name": the object has no name that an event can carry
	Decision string
}

// Proof is a sign of the API server that a watch works.
type Proof struct {
	Manager core.Manager
}

// WatchFailure is a failed attempt to establish a watch.
type WatchFailure struct {
	Manager core.Manager
	// Reason is one of these values:
	//
	//   - "unauthenticated": the API server refuses the credentials
	//   - "forbidden": the right to list or to watch is missing
	//   - "not_found": the API server does not serve the resource
	//   - "busy": the API server asks to come back later
	//   - "endless_list": the API server takes a streaming watch for an ordinary one, and never
	//     marks the end of its list. The objects are then listed the other way
	//   - "unreachable": no answer, or one that stops
	//   - "other": any other answer
	Reason string
}

// Conclusion is the end of one delivery of a message to a consumer.
type Conclusion struct {
	Manager core.Manager
	// Fate is "enqueued", "handed_back" to the runtime, "delayed" until the stream delivers the
	// message again, or "terminated".
	Fate string
	// Reason is empty when every event is enqueued. It is a metric label, provided that the reasons
	// of verifiers and handlers are.
	Reason string
	Took   time.Duration
}

// Backlog is the content of the stream of a manager. It is zero at a replica that takes no messages
// of the manager.
type Backlog struct {
	Manager core.Manager
	// Messages is their number in the stream.
	Messages uint64
	// Filled is the part of the bytes of the stream that is in use, from 0 to 1.
	Filled float64
	// Oldest is the age of the oldest message.
	Oldest time.Duration
}

// Unavailability is a change of whether the messages of a manager can be taken.
type Unavailability struct {
	Manager core.Manager
	// Reason is why the stream or its consumer is refused, or does not answer: one of those of a
	// forwarder. The backlog is then unknown. It is empty when this replica takes messages again,
	// or another replica does.
	Reason string
}

// Redelivery is a message that a stream delivers again.
type Redelivery struct {
	Manager core.Manager
}

// Resync is a resync of a fleet that was delivered to the handler of a manager.
type Resync struct {
	Manager core.Manager
	// Cause is one of the values that Causes of package fleet returns.
	Cause string
}

// Handled is a delivery that a source of a controller has handled.
type Handled struct {
	Delivery core.Delivery
	// Requests is how many requests the map function made of the delivery.
	Requests int
	// Err is nil if all requests are in the queue.
	Err error
}
