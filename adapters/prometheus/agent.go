package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Agent has the metrics of an agent. Its functions are hooks for the parts of an agent. They return
// at once and may be called concurrently.
type Agent struct {
	// Reviewed counts a review for manager that was answered with decision.
	Reviewed func(manager core.Manager, decision string, took time.Duration)
	// Refused counts a request that was answered with an HTTP status other than 200.
	Refused func(status int, reason string, took time.Duration)
	// OwnerProblem counts an object with a missing or malformed owner.
	OwnerProblem func(manager core.Manager, problem string)
	// Panicked counts a panic that was caught.
	Panicked func(place string)
	// InFlight adds 1 before a request is read, and -1 after it was answered.
	InFlight func(delta int)
	// HandshakeFailed counts a connection to the webhook with a failed TLS handshake.
	HandshakeFailed func(cause string)
	// Attempted counts one call of a forwarder with a number of events, 0 for a lone heartbeat.
	Attempted func(manager core.Manager, events int, took time.Duration, err error)
	// Connected counts an attempt to connect, which failed unless err is nil.
	Connected func(err error)
	// Retried counts a short retry after an HTTP status, 0 for no answer.
	Retried func(status int)
	// ContractInUse sets the contract that events to a manager travel with: "v1", "v2", ….
	ContractInUse func(manager core.Manager, contract string)
	// ContractUnknown counts an attempt that is answered as if the contract is not known.
	ContractUnknown func(manager core.Manager)
	// ConnectionDropped counts a connection that a server closed for its limit.
	ConnectionDropped func(server, reason string)
	// Stalled counts a time for which the agent did not run.
	Stalled func()
	// ManagersFileBroken sets whether the file with managers is broken.
	ManagersFileBroken func(broken bool)
	// CanaryProbed counts a write of the canary and sets the state that it showed.
	CanaryProbed func(state core.CanaryState, took time.Duration)
	// ReadOutbox makes each scrape read box. The last call counts.
	ReadOutbox func(box *outbox.Outbox)

	certificates
}

// NewAgent returns the metrics of an agent, registered with reg. It fails when reg is nil or an
// option is wrong. It fails with a [prom.AlreadyRegisteredError] and registers nothing when reg has
// such metrics.
func NewAgent(reg prom.Registerer, opts Options) (*Agent, error) {
	opts = opts.withDefaults()
	if err := check(reg, opts); err != nil {
		return nil, err
	}
	f, managers := &factory{word: "agent"}, newManagers(opts)
	a := &Agent{
		certificates: newCertificates(f),
		ReadOutbox:   add(f, newOutboxCollector(managers)).outbox.Store,
	}
	a.measureWebhook(f, managers)
	a.measureForwarding(f, managers)
	a.measureProcess(f)
	if err := register(reg, f); err != nil {
		return nil, err
	}
	return a, nil
}
