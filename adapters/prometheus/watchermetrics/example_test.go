package watchermetrics_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// The outbox is read at each scrape. Its hooks, and those of the other parts, belong to the
// metrics.
func ExampleNewAgent() {
	reg := prom.NewRegistry()

	metrics, err := watchermetrics.NewAgent(reg, watchermetrics.Options{})
	if err != nil {
		fmt.Println(err)

		return
	}

	box, err := outbox.New(forwarder, outbox.Options{Hooks: outbox.Hooks{Attempted: metrics.Attempted}})
	if err != nil {
		fmt.Println(err)

		return
	}

	metrics.ReadOutbox(box)
	box.Accept("kyma", core.WatchEvent{Watched: types.NamespacedName{Name: "settings"}})

	printMetrics(reg, "runtime_watcher_agent_events_")
	// Output:
	// runtime_watcher_agent_events_accepted_total{manager="kyma"} 1
	// runtime_watcher_agent_events_coalesced_total{manager="kyma"} 0
	// runtime_watcher_agent_events_delivered_total{manager="kyma"} 0
	// runtime_watcher_agent_events_dropped_total{manager="kyma",reason="overflow"} 0
	// runtime_watcher_agent_events_dropped_total{manager="kyma",reason="shutdown"} 0
	// runtime_watcher_agent_events_pending{manager="kyma"} 1
}

// An operator passes the registry that it already serves: metrics.Registry of controller-runtime.
func ExampleNewListener() {
	reg := prom.NewRegistry()

	metrics, err := watchermetrics.NewListener(reg, watchermetrics.Options{})
	if err != nil {
		fmt.Println(err)

		return
	}

	// A listener calls this when it has answered a request.
	metrics.Hooks.Answered(hook.Answer{Contract: "v2", Manager: "kyma", Status: http.StatusOK, Took: 80 * time.Microsecond})

	printMetrics(reg, "runtime_watcher_listener_requests_total")
	// Output:
	// runtime_watcher_listener_requests_total{code="200",contract="v2",manager="kyma",reason=""} 1
}

// forwarder stands for one of an adapter.
var forwarder = core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })

func printMetrics(reg *prom.Registry, prefix string) {
	response := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(response, request)

	for line := range strings.Lines(response.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			fmt.Print(line)
		}
	}
}
