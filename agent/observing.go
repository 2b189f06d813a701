package agent

import (
	"context"
	"crypto/fips140"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
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

	metrics, err := watchermetrics.NewAgent(b.registry, watchermetrics.Options{Managers: b.managers.all()})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.metrics = metrics
	b.managers.broken = metrics.ManagersFileBroken
	return nil
}

// gatherer returns all metrics. Aliases have a registry of their own, because they read the other.
func (b *builder) gatherer() prom.Gatherer {
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

	scrapes := promhttp.HandlerFor(b.gatherer(), promhttp.HandlerOpts{
		Registry: b.registry, MaxRequestsInFlight: maxScrapes,
		// A scrape has some kilobytes. Compressing it takes more memory than all else here.
		DisableCompression: true,
	})

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes)
	mux.Handle("GET /readyz", b.ready)
	mux.HandleFunc("GET /healthz", alive)

	b.observing, err = b.bind("metrics", b.opts.MetricsAddress, mux, httpserver.Options{
		MaxConnections:   maxScrapers,
		ShutdownTimeout:  b.opts.ShutdownTimeout / scrapesPart,
		ConnectionClosed: func(reason string) { b.connectionDropped("metrics", reason) },
	})

	return err
}

func (b *builder) connectionDropped(server, reason string) {
	b.metrics.ConnectionDropped(hook.ConnectionDrop{Server: server, Reason: core.Reason(reason)})
}

// aliases are computed from these metrics. docs/platforms/migration.md has the table.
type aliases struct{ source prom.Gatherer }

// durationStep keeps the mean duration out of the notation with an exponent, which the consumers of
// this metric do not read.
const durationStep = 1e-4

func (a aliases) Describe(descs chan<- *prom.Desc) { prom.DescribeByCollect(a, descs) }

// Collect omits requests outside /validate/, as the aliased metrics do.
func (a aliases) Collect(metrics chan<- prom.Metric) {
	alias := func(kind prom.ValueType, name, help string, value float64) {
		metrics <- prom.MustNewConstMetric(prom.NewDesc("watcher_"+name, "Alias: "+help, nil, nil), kind, value)
	}
	sum := a.gather()
	const outside = "unknown_path"
	refusals := sum("admission_refusals_total", "reason", outside).count
	alias(prom.CounterValue, "admission_request_total", "requests of the webhook.",
		sum("admission_reviews_total", "").count+refusals)
	alias(prom.CounterValue, "admission_request_error_total",
		"requests of the webhook that were no readable review.",
		sum("admission_refusals_total", "reason", outside, "manager").count)
	alias(prom.CounterValue, "kcp_requests_total", "events in attempts to forward them.",
		sum("forward_events_total", "result", "not_sent").count)
	took := sum("admission_duration_seconds", "")
	alias(prom.GaugeValue, "request_duration", "mean time to answer a request of the webhook, in seconds.",
		math.Ceil(took.seconds/max(took.answers, 1)/durationStep)*durationStep)
	alias(prom.GaugeValue, "fips_mode", "FIPS 140-3 mode of the process, 0 is off, 1 is on, 2 is only.", fipsMode())

	failed := prom.NewDesc("watcher_failed_kcp_total",
		"Alias: events in failed attempts, short retries, and objects without a valid owner.",
		[]string{"error_reason"}, nil)
	// All reasons are there from the start, so that a missing metric differs from 0.
	for reason, value := range map[string]float64{
		"failed-request": sum("forward_events_total", "result", "not_sent", "ok").count +
			sum("forward_retries_total", "").count,
		"unknown-owner":       sum("admission_owner_problems_total", "").count,
		"invalid-subresource": 0, "missing-address-or-contract": 0, "request-setup": 0,
	} {
		metrics <- prom.MustNewConstMetric(failed, prom.CounterValue, value, reason)
	}
}

func fipsMode() float64 {
	switch {
	case !fips140.Enabled():
		return 0
	case fips140.Enforced():
		return 2
	default:
		return 1
	}
}

type series struct{ count, seconds, answers float64 }

// gather adds up the series of a metric, without those with some values of a label.
func (a aliases) gather() func(name, label string, without ...string) series {
	families, _ := a.source.Gather() // The scrape of the source itself reports its errors.
	return func(name, label string, without ...string) (sum series) {
		for _, family := range families {
			if family.GetName() != "runtime_watcher_agent_"+name {
				continue
			}

			for _, metric := range family.GetMetric() {
				value := ""
				for _, pair := range metric.GetLabel() {
					if pair.GetName() == label {
						value = pair.GetValue()
					}
				}

				if !slices.Contains(without, value) {
					sum.count += metric.GetCounter().GetValue()
					sum.seconds += metric.GetHistogram().GetSampleSum()
					sum.answers += float64(metric.GetHistogram().GetSampleCount())
				}
			}
		}

		return sum
	}
}

// readiness reports whether the API server should call this agent, and whether its source sees
// changes. It does not depend on the control plane: an agent that is not called misses changes, and
// otherwise it keeps them.
type readiness struct {
	keys   keySet
	proof  *proof
	delay  time.Duration
	source func() error
	log    *slog.Logger

	serving atomic.Bool
	// probed is set when a probe was answered that the agent is ready.
	probed atomic.Bool
}

// health is the answer of the readiness probe in JSON.
type health struct {
	Ready       bool             `json:"ready"`
	Serving     bool             `json:"serving"`
	KeyMaterial []materialHealth `json:"keyMaterial"`
	// Source says why the source is not ready.
	Source string `json:"source,omitempty"`
	// WebhookFailures is the number of calls from the API server that have failed since the start.
	WebhookFailures int64 `json:"webhookFailures"`
}

// materialHealth is the key material of one use, in the answer of the readiness probe.
type materialHealth struct {
	Use         string    `json:"use"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	NotAfter    time.Time `json:"notAfter"`
	Loaded      time.Time `json:"loaded"`
	// Problem says why the current files are not in use. The agent stays ready.
	Problem string `json:"problem,omitempty"`
}

// component stops first, so that other replicas are called while this one still answers.
func (r *readiness) component() component {
	return component{"readiness", func(ctx context.Context) error {
		r.serving.Store(true)
		<-ctx.Done()
		r.serving.Store(false)
		r.log.InfoContext(ctx, "agent stops", slog.Duration("delay", r.delay))
		periodic.Pause(context.WithoutCancel(ctx), r.delay)
		return nil
	}}
}

// health returns the state at this moment. An API server does not call a webhook with an expired
// certificate.
func (r *readiness) health(now time.Time) health {
	h := health{Serving: r.serving.Load(), WebhookFailures: r.proof.failures.Load()}
	if err := r.source(); err != nil {
		h.Source = err.Error()
	}
	expired := r.keys.serving != nil && !now.Before(r.keys.serving.Status().Material.NotAfter)
	h.Ready = h.Serving && h.Source == "" && !expired
	for _, set := range r.keys.all() {
		h.KeyMaterial = append(h.KeyMaterial, set.health())
	}
	return h
}

func (k *keyMaterial) health() materialHealth {
	status := k.Status()
	h := materialHealth{
		Use: k.name(), Fingerprint: status.Material.Fingerprint,
		NotAfter: k.validity(k.uses[0]).NotAfter.UTC(), Loaded: status.Loaded.UTC(),
	}
	if status.Err != nil {
		h.Problem = status.Err.Error()
	}
	return h
}

// ServeHTTP answers 200 or 503 with the state.
func (r *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := r.health(time.Now())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if h.Ready {
		r.probed.Store(true)
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) //nolint:errchkjson // A client that has gone reads no answer.
}

func alive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
