package prometheus

import (
	"time"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// measureProcess makes the metrics of the agent as a whole.
func (a *Agent) measureProcess(f *factory) {
	var servers, reasons, states vocabulary
	drops := f.counters("connections_dropped_total",
		"Connections to a server of the agent that were closed for its limit, by reason.", labelServer, labelReason)
	a.ConnectionDropped = func(server, reason string) {
		drops.WithLabelValues(servers.value(server), reasons.value(reason)).Inc()
	}

	a.Stalled = f.counter("stalls_total",
		"Times that the agent did not run for 1 s or longer. A resync stands in for the missed reviews.").Inc

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
