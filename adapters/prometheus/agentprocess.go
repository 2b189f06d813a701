package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// processMetrics are those of the agent as a whole.
type processMetrics struct {
	drops    *prom.CounterVec
	stalls   prom.Counter
	managers prom.Gauge
	canaries *prom.HistogramVec
	canary   *prom.GaugeVec

	servers, reasons, states *vocabulary
}

func newProcessMetrics(f factory) processMetrics {
	return processMetrics{
		drops: f.counters("connections_dropped_total",
			"Connections to a server of the agent that were closed for its limit, by reason.", labelServer, labelReason),
		stalls: f.counter("stalls_total",
			"Times that the agent did not run for 1 s or longer. A resync stands in for the missed reviews."),
		managers: f.gauge("managers_file_broken",
			"1 while the file with managers is broken and its last good list is in use, else 0."),
		canaries: f.histograms("canary_duration_seconds",
			"Time of one write of the canary, by the state that it showed.", forwardBuckets(), labelState),
		canary: f.gauges("canary_state",
			"1 for the state that the last write of the canary showed, 0 for a former one.", labelState),
		servers: new(vocabulary), reasons: new(vocabulary), states: new(vocabulary),
	}
}

func (m processMetrics) all() collectors {
	return collectors{m.drops, m.stalls, m.managers, m.canaries, m.canary}
}

func (a *Agent) connectionDropped(server, reason string) {
	a.process.drops.WithLabelValues(a.process.servers.value(server), a.process.reasons.value(reason)).Inc()
}

func (a *Agent) stalled() { a.process.stalls.Inc() }

func (a *Agent) managersFileBroken(broken bool) {
	a.process.managers.Set(0)
	if broken {
		a.process.managers.Set(1)
	}
}

func (a *Agent) canaryProbed(state core.CanaryState, took time.Duration) {
	a.process.canaries.WithLabelValues(a.process.states.value(string(state))).Observe(took.Seconds())
	choose(a.process.canary, a.process.states, string(state))
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
