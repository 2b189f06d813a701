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
	a := &Agent{}
	if err := register(reg, "agent", opts, a.measure); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) measure(f *factory) {
	a.certificates = newCertificates(f)
	a.measureOutbox(f)
	a.measureWebhook(f)
	a.measureForwarding(f)
	a.measureProcess(f)
}

func (a *Agent) measureProcess(f *factory) {
	var servers, reasons, states vocabulary
	drops := f.counters("connections_dropped_total",
		"Connections to a server of the agent that were closed for its limit, by reason.", labelServer, labelReason)
	a.ConnectionDropped = func(server, reason string) {
		drops.WithLabelValues(servers.value(server), reasons.value(reason)).Inc()
	}

	a.Stalled = f.counters("stalls_total",
		"Times that the agent did not run for 1 s or longer. A resync stands in for the missed reviews.").WithLabelValues().Inc

	broken := f.gauge("managers_file_broken",
		"1 while the file with managers is broken and its last good list is in use, else 0.")
	a.ManagersFileBroken = func(is bool) {
		broken.Set(0)
		if is {
			broken.Set(1)
		}
	}

	canaries := f.histograms("canary_duration_seconds",
		"Time of one write of the canary, by the state that it showed.", forwardBuckets(), labelState)
	canary := f.gauges("canary_state",
		"1 for the state that the last write of the canary showed, 0 for a former one.", labelState)
	a.CanaryProbed = func(state core.CanaryState, took time.Duration) {
		canaries.WithLabelValues(states.value(string(state))).Observe(took.Seconds())
		choose(canary, &states, string(state))
	}
}

// choose sets the series of word to 1 and those of the other words to 0. The word is the last
// label.
func choose(gauges *prom.GaugeVec, words *vocabulary, word string, labels ...string) {
	word = words.value(word)
	gauges.WithLabelValues(append(labels, word)...).Set(1)
	for _, other := range words.values() {
		if other != word {
			gauges.WithLabelValues(append(labels, other)...).Set(0)
		}
	}
}
