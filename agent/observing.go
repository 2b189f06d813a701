package agent

import (
	"fmt"
	"net/http"
	"slices"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

const (
	// maxScrapes bounds concurrent scrapes, because each takes memory.
	maxScrapes = 3
	// maxScrapers bounds the connections of the metrics port.
	maxScrapers = 64
)

func (b *builder) addMetrics() error {
	b.registry = prom.NewRegistry()
	for _, collector := range slices.Concat(b.opts.Collectors, []prom.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}) {
		if err := b.registry.Register(collector); err != nil {
			return fmt.Errorf("agent: metrics: %w", err)
		}
	}

	metrics, err := watchermetrics.NewAgent(b.registry, watchermetrics.Options{Managers: b.managers.allManagers()})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.metrics = metrics
	b.managers.broken = metrics.ManagersFileBroken
	return nil
}

// newGatherer returns all metrics. Aliases have a separate registry, because they read the registry
// of the builder.
func (b *builder) newGatherer() prom.Gatherer {
	if !b.opts.MetricAliases {
		return b.registry
	}
	others := prom.NewPedanticRegistry()
	others.MustRegister(aliases{b.registry})
	return prom.Gatherers{b.registry, others}
}

func (b *builder) addObserving() (err error) {
	b.ready = &readiness{
		keys: b.keys, proof: b.heartbeats.proof, delay: b.opts.StopDelay, source: b.parts.Ready, log: b.log,
	}

	scrapes := promhttp.HandlerFor(b.newGatherer(), promhttp.HandlerOpts{
		Registry: b.registry, MaxRequestsInFlight: maxScrapes,
		// A scrape has some kilobytes. Compressing it takes more memory than all else here.
		DisableCompression: true,
	})

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes)
	mux.Handle("GET /readyz", b.ready)
	mux.HandleFunc("GET /healthz", alive)

	b.observing, err = b.bindServer("metrics", b.opts.MetricsAddress, mux, httpserver.Options{
		MaxConnections:   maxScrapers,
		ShutdownTimeout:  b.opts.ShutdownTimeout / scrapesPart,
		ConnectionClosed: func(reason string) { b.connectionDropped("metrics", reason) },
	})

	return err
}
