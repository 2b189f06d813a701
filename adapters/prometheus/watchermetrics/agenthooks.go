package watchermetrics

import (
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Agent contains the metrics of an agent. Its functions are hooks for the parts of an agent. They
// return immediately and may be called concurrently.
type Agent struct {
	// Reviewed counts an answered review.
	Reviewed func(hook.Review)
	// Refused counts a request that was answered with an HTTP status other than 200.
	Refused func(hook.Refusal)
	// OwnerProblem counts an object with a missing or malformed owner.
	OwnerProblem func(hook.OwnerProblem)
	// Panicked counts a panic that was caught.
	Panicked func(hook.Panic)
	// InFlight adds 1 before a request is read and -1 after it is answered.
	InFlight func(delta int)
	// HandshakeFailed counts a connection to the webhook with a failed TLS handshake.
	HandshakeFailed func(hook.HandshakeFailure)
	// Attempted counts one call of a forwarder.
	Attempted func(hook.Attempt)
	// Connected counts an attempt to connect.
	Connected func(hook.Connection)
	// Retried counts a short retry.
	Retried func(hook.Retry)
	// ContractInUse sets the contract that is in use for a manager.
	ContractInUse func(hook.ContractInUse)
	// ContractUnknown counts an attempt that the control plane answers as if it did not support the
	// contract.
	ContractUnknown func(hook.UnknownContract)
	// ConnectionDropped counts a connection that a server closed because of its limit.
	ConnectionDropped func(hook.ConnectionDrop)
	// Stalled counts a period in which the agent did not run.
	Stalled func(hook.Stall)
	// ManagersFileBroken sets whether the file of managers is broken.
	ManagersFileBroken func(broken bool)
	// CanaryProbed counts a write of the canary and sets the state that it showed.
	CanaryProbed func(hook.CanaryProbe)
	// WebhooksChecked counts a comparison of webhooks.
	WebhooksChecked func(hook.WebhookCheck)
	// ReadOutbox makes each scrape read box. The last call takes effect.
	ReadOutbox func(box *outbox.Outbox)

	certificates
}
