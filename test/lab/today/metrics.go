package today

import "github.com/prometheus/client_golang/prometheus"

// RegisterMetrics registers the six metrics of the former listener as the operator of
// lifecycle-manager c5b83f1 does when it starts: with the label of the server, and without series.
func RegisterMetrics(registry prometheus.Registerer) {
	const prefix = "watcher_listener_"
	const help = "Of the former listener."
	server := []string{"server_name"}
	gauge := func(name string) prometheus.Collector {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, server)
	}
	counter := func(name string, labels ...string) prometheus.Collector {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	registry.MustRegister(
		gauge("request_duration"),
		gauge("inflight_requests"),
		counter("requests_total", server...),
		counter("request_errors_total", server...),
		counter("exceeding_size_limit_requests_total", server...),
		counter("failed_verification_requests_total", "server_name", "request_uri_label"),
	)
}
