package main

import (
	"fmt"
	"net/http"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// scrapers is how many scrapes are served at once: each takes memory.
const scrapers = 3

// newMetrics returns the metrics of the agent and what serves them.
func newMetrics(c config) (*prometheus.Agent, http.Handler, error) {
	registry := prom.NewRegistry()

	for _, collector := range []prom.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(c),
	} {
		if err := registry.Register(collector); err != nil {
			return nil, nil, fmt.Errorf("register metrics of the process: %w", err)
		}
	}

	agent, err := prometheus.NewAgent(registry, prometheus.Options{Managers: c.managers})
	if err != nil {
		return nil, nil, fmt.Errorf("register metrics: %w", err)
	}

	return agent, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry: registry, MaxRequestsInFlight: scrapers,
		// A scrape is some kilobytes, and what compresses it would take more memory than all else here.
		DisableCompression: true,
	}), nil
}

func buildInfo(c config) prom.Collector {
	b := thisBuild()

	return prom.NewGaugeFunc(prom.GaugeOpts{
		Namespace: "runtime_watcher", Subsystem: "agent", Name: "build_info",
		Help: "What this agent is, always 1.",
		ConstLabels: prom.Labels{
			"version": b.version, "goversion": b.goVersion, "fips140": b.fips, "contract": string(c.contract), "config": c.hash(),
		},
	}, func() float64 { return 1 })
}

// newObserving returns what the metrics port serves, and nothing else.
func newObserving(metrics, ready http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", alive)

	return mux
}
