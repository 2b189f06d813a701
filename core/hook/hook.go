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
	Reason core.Reason
	// Took is the time from the header of the request to the answer.
	Took time.Duration
}

// HandshakeCause is why a TLS handshake failed.
type HandshakeCause string

const (
	// HandshakeNoCertificate means that the client has sent no certificate.
	HandshakeNoCertificate HandshakeCause = "no_certificate"
	// HandshakeUntrusted means that this end refused the certificate of the client.
	HandshakeUntrusted HandshakeCause = "untrusted"
	// HandshakeBadCertificate means that the client refused the certificate of this end.
	HandshakeBadCertificate HandshakeCause = "bad_certificate"
	// HandshakeProtocol means that the client does not speak TLS 1.3, or no TLS.
	HandshakeProtocol HandshakeCause = "protocol"
	// HandshakeTimeout means that the client was too slow.
	HandshakeTimeout HandshakeCause = "timeout"
	// HandshakeClosed means that the client closed the connection.
	HandshakeClosed HandshakeCause = "closed"
	// HandshakeOther is any other cause.
	HandshakeOther HandshakeCause = "other"
)

// HandshakeFailure is a connection with a failed TLS handshake.
type HandshakeFailure struct {
	Cause HandshakeCause
}

// The reasons of a [ConnectionDrop].
const (
	// ReasonDisplaced means that a newer connection got the slot.
	ReasonDisplaced core.Reason = "displaced"
	// ReasonNoSlot means that no slot was free.
	ReasonNoSlot core.Reason = "no_slot"
)

// ConnectionDrop is a connection that a server closed for its limit of connections.
type ConnectionDrop struct {
	// Server is the server of an agent: "webhook" or "metrics". A listener leaves it empty.
	Server string
	// Reason is [ReasonDisplaced] or [ReasonNoSlot].
	Reason core.Reason
}

// Listener has the optional hooks of a listener.
type Listener struct {
	// Managers are the managers that the hooks expect, such as those with metrics from the start.
	// The log of the listener names each that it does not serve. Default: none.
	Managers []core.Manager
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

// Decision is the fate of a change at its source.
type Decision string

// The decisions of the acceptor, for a change that matters.
const (
	// DecisionAccepted is [core.Accepted].
	DecisionAccepted = Decision(core.Accepted)
	// DecisionCoalesced is [core.Coalesced].
	DecisionCoalesced = Decision(core.Coalesced)
	// DecisionDropped is [core.Dropped].
	DecisionDropped = Decision(core.Dropped)
)

// The decisions of a source, for a change that causes no event.
const (
	// DecisionUnchanged means that an update did not change the watched part of the object. The
	// informer also decides so for an update that its filter refuses.
	DecisionUnchanged Decision = "unchanged"
	// DecisionIrrelevant means that the filter refuses a change that is no update.
	DecisionIrrelevant Decision = "irrelevant"
	// DecisionDryRun means that the write is not persisted. Only the webhook decides so.
	DecisionDryRun Decision = "dry_run"
	// DecisionNoOwner means that the object has no valid owner, but an owner is required.
	DecisionNoOwner Decision = "no_owner"
	// DecisionNoName means that the object has no name, or one that is too long for an event. The
	// webhook accepts an update or a deletion that names no object at all as a resync instead.
	DecisionNoName Decision = "no_name"
	// DecisionUnread means that there was no memory to read the review; a resync is accepted
	// instead.
	DecisionUnread Decision = "unread"
	// DecisionFailed means that something panicked, see the log; a resync is accepted instead.
	DecisionFailed Decision = "failed"
)

// Review is an answered admission review. The write is allowed with each decision.
type Review struct {
	Manager core.Manager
	// Decision is the fate of the change.
	Decision Decision
	// Took is the time from the beginning of the request, before its body is read, to the answer.
	Took time.Duration
}

// Refusal is a request to the webhook that is answered with another status than 200.
type Refusal struct {
	// Status is that of HTTP.
	Status int
	// Reason is one of the constants of package admission.
	Reason core.Reason
	Took   time.Duration
}

// OwnerFault is a fault of the owner that an object names.
type OwnerFault string

const (
	// OwnerMalformed means that the owner annotation is not <namespace>/<name>.
	OwnerMalformed OwnerFault = "malformed"
	// OwnerMissing means that there is no owner, but an owner is required.
	OwnerMissing OwnerFault = "missing"
)

// OwnerProblem is a watched object without a valid owner.
type OwnerProblem struct {
	Manager core.Manager
	Problem OwnerFault
}

// Place is where the webhook panicked.
type Place string

const (
	// PlaceFilter is a filter. The change matters.
	PlaceFilter Place = "filter"
	// PlaceAcceptor is the acceptor, or a hook before it. A resync is accepted.
	PlaceAcceptor Place = "acceptor"
	// PlaceRequest is the reading of the request, which is answered 500.
	PlaceRequest Place = "request"
	// PlaceHooks is another hook, or a logger after the answer.
	PlaceHooks Place = "hooks"
)

// Panic is a panic that the webhook recovered.
type Panic struct {
	Place Place
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
	// Err is nil for a connection. Otherwise its [core.ReasonOf] is a metric label such as "dns".
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

// WebhookCheck is a comparison of the webhooks that the API server has with those that were
// applied, or a repair of them.
type WebhookCheck struct {
	// Result is "same" or "changed", and "failed" if the webhooks could not be read. An agent that
	// keeps them also has "restored", "contested" if others change them again and again, and
	// "failed" if it could not write them.
	Result string
}

// Observation is a change of an object that an informer observed.
type Observation struct {
	Manager core.Manager
	// Decision is the fate of the change.
	Decision Decision
}

// Proof is a sign of the API server that a watch works.
type Proof struct {
	Manager core.Manager
}

// WatchFailure is a failed attempt to establish a watch.
type WatchFailure struct {
	Manager core.Manager
	// Reason is one of the constants of package informer, or [core.ReasonUnauthenticated],
	// [core.ReasonForbidden], [core.ReasonNotFound], [core.ReasonBusy] or [core.ReasonOther] for an
	// answer of the API server.
	Reason core.Reason
}

// Fate is the end of a message to a consumer.
type Fate string

const (
	// FateEnqueued means that the events of the message are in the queues of controllers.
	FateEnqueued Fate = "enqueued"
	// FateHandedBack means that the message went back to the runtime.
	FateHandedBack Fate = "handed_back"
	// FateDelayed means that the stream delivers the message again later.
	FateDelayed Fate = "delayed"
	// FateTerminated means that the message is given up.
	FateTerminated Fate = "terminated"
)

// Conclusion is the end of one delivery of a message to a consumer.
type Conclusion struct {
	Manager core.Manager
	Fate    Fate
	// Reason is empty when every event is enqueued. It is a metric label, provided that the reasons
	// of verifiers and handlers are.
	Reason core.Reason
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
	Reason core.Reason
}

// Redelivery is a message that a stream delivers again.
type Redelivery struct {
	Manager core.Manager
}

// ResyncCause is why a fleet asked for a resync. Package fleet has the constants.
type ResyncCause string

// Resync is a resync of a fleet that was delivered to the handler of a manager.
type Resync struct {
	Manager core.Manager
	// Cause is one of the values that Causes of package fleet returns.
	Cause ResyncCause
}

// Handled is a delivery that a source of a controller has handled.
type Handled struct {
	Delivery core.Delivery
	// Requests is how many requests the map function made of the delivery.
	Requests int
	// Err is nil if all requests are in the queue.
	Err error
}
