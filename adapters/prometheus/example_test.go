package prometheus_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// The metrics of an agent are hooks of its parts.
func ExampleNewAgent() {
	reg := prom.NewRegistry()

	metrics, err := prometheus.NewAgent(reg, prometheus.Options{})
	if err != nil {
		fmt.Println(err)

		return
	}

	hooks := outbox.Hooks{Counted: metrics.Counted, Attempted: metrics.Attempted}

	// What an outbox calls when an event comes, waits and is acknowledged.
	hooks.Counted("kyma", outbox.Counts{Accepted: 1, Pending: 1})
	hooks.Counted("kyma", outbox.Counts{Delivered: 1, Pending: -1})

	printMetrics(reg, "runtime_watcher_agent_events_")
	// Output:
	// runtime_watcher_agent_events_accepted_total{manager="kyma"} 1
	// runtime_watcher_agent_events_coalesced_total{manager="kyma"} 0
	// runtime_watcher_agent_events_delivered_total{manager="kyma"} 1
	// runtime_watcher_agent_events_dropped_total{manager="kyma",reason="overflow"} 0
	// runtime_watcher_agent_events_dropped_total{manager="kyma",reason="shutdown"} 0
	// runtime_watcher_agent_events_pending{manager="kyma"} 0
}

// An operator passes the registry that it serves already, in controller-runtime metrics.Registry.
func ExampleNewListener() {
	reg := prom.NewRegistry()

	metrics, err := prometheus.NewListener(reg, prometheus.Options{})
	if err != nil {
		fmt.Println(err)

		return
	}

	// What a listener calls when it has answered a request.
	metrics.Answered("v2", "kyma", http.StatusOK, "", 80*time.Microsecond)

	printMetrics(reg, "runtime_watcher_listener_requests_total")
	// Output:
	// runtime_watcher_listener_requests_total{code="200",contract="v2",manager="kyma",reason=""} 1
}

func printMetrics(reg *prom.Registry, prefix string) {
	response := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))

	for line := range strings.Lines(response.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			fmt.Print(line)
		}
	}
}
