package prometheus

import (
	"net/http"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
)

// listenerAliases are the metrics of the listener of kyma-project/runtime-watcher, by its names and
// labels.
type listenerAliases struct {
	requests, errors, tooLarge prom.Counter
	unverified                 *prom.CounterVec
	duration, inFlight         prom.Gauge
}

func newListenerAliases(f *factory) *listenerAliases {
	server := prom.Labels{"server_name": "listener"}
	counter := func(name, help string) prom.CounterOpts {
		return prom.CounterOpts{Name: "watcher_listener_" + name, Help: "Alias: " + help, ConstLabels: server}
	}
	gauge := func(name, help string) prom.Gauge { return add(f, prom.NewGauge(prom.GaugeOpts(counter(name, help)))) }
	return &listenerAliases{
		requests: add(f, prom.NewCounter(counter("requests_total", "requests answered."))),
		errors:   add(f, prom.NewCounter(counter("request_errors_total", "requests answered with 400 or more."))),
		tooLarge: add(f, prom.NewCounter(counter("exceeding_size_limit_requests_total", "requests answered with 413."))),
		unverified: add(f, prom.NewCounterVec(counter("failed_verification_requests_total",
			"requests answered with 401 or 403."), []string{"request_uri_label"})),
		duration: gauge("request_duration", "time to answer the last request, in seconds."),
		inFlight: gauge("inflight_requests", "requests that the verifier or the handler is working on."),
	}
}

func (a *listenerAliases) answered(uri string, status int, took time.Duration) {
	a.requests.Inc()
	a.duration.Set(took.Seconds())
	if status >= http.StatusBadRequest {
		a.errors.Inc()
	}
	switch status {
	case http.StatusRequestEntityTooLarge:
		a.tooLarge.Inc()
	case http.StatusUnauthorized, http.StatusForbidden:
		a.unverified.WithLabelValues(uri).Inc()
	}
}
