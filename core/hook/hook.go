// Package hook defines the reports of the parts of Runtime Watcher to their hooks: one struct for
// each kind of report. Later versions may add fields, which breaks no hook.
//
// A hook must return immediately, because an API server, a runtime or a queue of events waits for
// it. A hook may be called concurrently. A nil hook is skipped.
//
// Strings are metric labels with a small set of values. Durations are wall time.
//
// Two kinds of hook have no struct, because each needs only one value. Hooks for gauges are called
// with 1 or -1. Hooks for switches are called with the new state.
package hook

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Answer is the answer to a request of a runtime.
type Answer struct {
	// Contract and Manager are empty if the request does not name a known contract or manager.
	Contract contract.Version
	Manager  core.Manager
	// Status is the HTTP status.
	Status int
	// Reason is empty if every event was accepted, unless an observing verifier accepted it.
	Reason core.Reason
	// Took is the time from the header of the request to the answer.
	Took time.Duration
}

// HandshakeCause says why a TLS handshake failed.
type HandshakeCause string

const (
	// HandshakeNoCertificate means that the client has sent no certificate.
	HandshakeNoCertificate HandshakeCause = "no_certificate"
	// HandshakeUntrusted means that this side refused the certificate of the client.
	HandshakeUntrusted HandshakeCause = "untrusted"
	// HandshakeBadCertificate means that the client refused the certificate of this side.
	HandshakeBadCertificate HandshakeCause = "bad_certificate"
	// HandshakeProtocol means that the client does not speak TLS 1.3 or does not speak TLS at all.
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

// ConnectionDrop is a connection that a server closed because of its limit on connections.
type ConnectionDrop struct {
	// Server is the server of an agent: "webhook" or "metrics". A listener leaves it empty.
	Server string
	// Reason is [ReasonDisplaced] or [ReasonNoSlot].
	Reason core.Reason
}

// Listener contains the optional hooks of a listener.
type Listener struct {
	// Managers are the managers that the hooks expect, such as managers with metrics from the
	// start. The listener logs each of these managers that it does not serve. Default: none.
	Managers []core.Manager
	// Answered is called after each request.
	Answered func(Answer)
	// InFlight is called with 1 before the verifier and the handler are called for a request, and
	// with -1 afterwards.
	InFlight func(delta int)
	// HandshakeFailed is called for each failed TLS handshake.
	HandshakeFailed func(HandshakeFailure)
	// ConnectionDropped is called for each connection that was closed because of
	// Options.MaxConnections.
	ConnectionDropped func(ConnectionDrop)
}

// Decision is the fate of a change at its source.
type Decision string

// The decisions of the acceptor, for a change that matters.
const (
	// DecisionAccepted has the meaning of [core.Accepted].
	DecisionAccepted = Decision(core.Accepted)
	// DecisionCoalesced has the meaning of [core.Coalesced].
	DecisionCoalesced = Decision(core.Coalesced)
	// DecisionDropped has the meaning of [core.Dropped].
	DecisionDropped = Decision(core.Dropped)
)

// The decisions of a source, for a change that causes no event.
const (
	// DecisionUnchanged means that an update did not change the watched part of the object. The
	// informer also uses it for an update that its filter refuses.
	DecisionUnchanged Decision = "unchanged"
	// DecisionIrrelevant means that the filter refuses a change that is not an update.
	DecisionIrrelevant Decision = "irrelevant"
	// DecisionDryRun means that the write is not persisted. Only the webhook uses it.
	DecisionDryRun Decision = "dry_run"
	// DecisionNoOwner means that the object has no valid owner, but an owner is required.
	DecisionNoOwner Decision = "no_owner"
	// DecisionNoName means that the object has no name, or a name that is too long for an event.
	// For an update or a deletion that names no object at all, the webhook accepts a resync
	// instead.
	DecisionNoName Decision = "no_name"
	// DecisionUnread means that there was no memory to read the review; a resync is accepted
	// instead.
	DecisionUnread Decision = "unread"
	// DecisionFailed means that code panicked, as the log shows; a resync is accepted instead.
	DecisionFailed Decision = "failed"
)

// Review is an answered admission review. The write is allowed with each decision.
type Review struct {
	Manager core.Manager
	// Decision is the fate of the change.
	Decision Decision
	// Took is the time from the start of the request, before its body is read, to the answer.
	Took time.Duration
}

// Refusal is a request to the webhook that is answered with a status other than 200.
type Refusal struct {
	// Status is the HTTP status.
	Status int
	// Reason is one of the constants of package admission.
	Reason core.Reason
	Took   time.Duration
}

// OwnerFault is the kind of fault in the owner of an object.
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

// Place is the place at which the webhook panicked.
type Place string

const (
	// PlaceFilter is a filter. The change is treated as relevant.
	PlaceFilter Place = "filter"
	// PlaceAcceptor is the acceptor, or a hook before it. A resync is accepted.
	PlaceAcceptor Place = "acceptor"
	// PlaceRequest is the reading of the request, which is answered with 500.
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
	// Events is the number of events in the batch, or 0 for a lone heartbeat.
	Events int
	Took   time.Duration
	// Err is nil if the receiver accepted the whole batch, and otherwise the error that
	// [core.Forwarder] documents.
	Err error
}

// Connection is an attempt to open a TCP connection to the control plane.
type Connection struct {
	// Err is nil if the connection was opened. Otherwise [core.ReasonOf] returns its metric label,
	// such as "dns".
	Err error
}

// Disconnection is the end of a connection to the control plane that was still in use.
type Disconnection struct {
	// Lasted is the time since the connection was opened.
	Lasted time.Duration
}

// Retry describes a short retry by a forwarder within one attempt.
type Retry struct {
	// Status is the HTTP status of the previous answer, or 0 if there was no answer.
	Status int
}

// UnknownContract is an answer that a control plane gives if it does not support the contract.
type UnknownContract struct {
	Manager core.Manager
	// Err is the error of the forwarder.
	Err error
}

// Fallback is a change between the forwarders of a fallback.
type Fallback struct {
	Manager core.Manager
	// Older means that the older forwarder is in use.
	Older bool
}

// ContractInUse is the contract that carries the events to a manager from now on.
type ContractInUse struct {
	Manager  core.Manager
	Contract contract.Version
}

// Stall is a period in which an agent did not run.
type Stall struct {
	Took time.Duration
}

// CanaryProbe is a write of the canary.
type CanaryProbe struct {
	// State is the result of the write.
	State core.CanaryState
	// Took is the duration of the write.
	Took time.Duration
}

// WebhookCheck is a comparison of the webhooks in the API server with the webhooks that were
// applied, or a repair of the webhooks.
type WebhookCheck struct {
	// Result is "same", "changed", or "failed" if the webhooks could not be read. An agent that
	// maintains the webhooks also reports "restored", "contested" if another client keeps changing
	// them, and "failed" if it could not write them.
	Result string
}

// Observation is a change of an object that an informer observed.
type Observation struct {
	Manager core.Manager
	// Decision is the fate of the change.
	Decision Decision
}

// Proof is a sign from the API server that a watch works.
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
	// FateEnqueued means that the events of the message are in the queues of the controllers.
	FateEnqueued Fate = "enqueued"
	// FateHandedBack means that the message went back to the runtime.
	FateHandedBack Fate = "handed_back"
	// FateDelayed means that the stream delivers the message again later.
	FateDelayed Fate = "delayed"
	// FateTerminated means that the consumer gave the message up.
	FateTerminated Fate = "terminated"
)

// Conclusion is the end of one delivery of a message to a consumer.
type Conclusion struct {
	Manager core.Manager
	Fate    Fate
	// Reason is empty if every event is enqueued. It is a metric label, provided that verifiers and
	// handlers return errors with reasons from a small fixed set.
	Reason core.Reason
	Took   time.Duration
}

// Backlog is the content of the stream of a manager. It is zero on a replica that takes no messages
// of the manager.
type Backlog struct {
	Manager core.Manager
	// Messages is the number of messages in the stream.
	Messages uint64
	// Filled is the used fraction of the stream's byte limit, from 0 to 1.
	Filled float64
	// Oldest is the age of the oldest message.
	Oldest time.Duration
}

// Unavailability is a change in whether the messages of a manager can be taken.
type Unavailability struct {
	Manager core.Manager
	// Reason is why the NATS server refuses access to the stream or its consumer, or does not
	// answer. It is one of the reasons that a forwarder returns. The backlog is then unknown.
	// Reason is empty if this replica takes messages again, or another replica does.
	Reason core.Reason
}

// Redelivery is a message that a stream delivers again.
type Redelivery struct {
	Manager core.Manager
}

// ResyncCause says why a fleet requested a resync. Package fleet defines the constants.
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
	// Requests is the number of requests that the map function returned for the delivery.
	Requests int
	// Err is nil if all requests were added to the queue.
	Err error
}
