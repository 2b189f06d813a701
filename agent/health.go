package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// readiness reports whether the API server should call this agent, and whether its source sees
// changes. It does not depend on the control plane: an agent that is not called misses changes, and
// otherwise it keeps them.
type readiness struct {
	keys  keySet
	proof *proof
	delay time.Duration
	// source returns why the source is not ready.
	source func() error
	log    *slog.Logger

	serving atomic.Bool
}

// health is the body of /readyz.
type health struct {
	Ready       bool             `json:"ready"`
	Serving     bool             `json:"serving"`
	KeyMaterial []materialHealth `json:"keyMaterial"`
	// Source is why the source is not ready.
	Source string `json:"source,omitempty"`
	// WebhookFailures are the calls of the API server that failed since the start.
	WebhookFailures int64 `json:"webhookFailures"`
}

type materialHealth struct {
	Use         string    `json:"use"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	NotAfter    time.Time `json:"notAfter"`
	Loaded      time.Time `json:"loaded"`
	// Problem is why the present files are not in use. The agent stays ready.
	Problem string `json:"problem,omitempty"`
}

// component is ready from its start on. It stops first, so that the API server calls other replicas
// while this one still answers.
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
	_, notAfter := k.validity(k.uses[0])
	h := materialHealth{
		Use: k.name(), Fingerprint: status.Material.Fingerprint,
		NotAfter: notAfter.UTC(), Loaded: status.Loaded.UTC(),
	}
	if status.Err != nil {
		h.Problem = status.Err.Error()
	}
	return h
}

// ServeHTTP answers 200 or 503 with the state.
func (r *readiness) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	h := r.health(time.Now())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !h.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if err := json.NewEncoder(w).Encode(h); err != nil {
		r.log.DebugContext(request.Context(), "readiness was not read to its end", slog.Any("error", err))
	}
}

func alive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
