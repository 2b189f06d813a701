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

// asComponent stops first, so that other replicas are called while this one still answers.
func (r *readiness) asComponent() component {
	return component{"readiness", func(ctx context.Context) error {
		r.serving.Store(true)
		<-ctx.Done()
		r.serving.Store(false)
		r.log.InfoContext(ctx, "agent stops", slog.Duration("delay", r.delay))
		periodic.Pause(context.WithoutCancel(ctx), r.delay)
		return nil
	}}
}

// healthAt returns the state at this moment. An API server does not call a webhook with an expired
// certificate.
func (r *readiness) healthAt(now time.Time) health {
	h := health{Serving: r.serving.Load(), WebhookFailures: r.proof.failures.Load()}
	if err := r.source(); err != nil {
		h.Source = err.Error()
	}
	expired := r.keys.serving != nil && !now.Before(r.keys.serving.Status().Material.NotAfter)
	h.Ready = h.Serving && h.Source == "" && !expired
	for _, set := range r.keys.allMaterials() {
		h.KeyMaterial = append(h.KeyMaterial, set.currentHealth())
	}
	return h
}

func (k *keyMaterial) currentHealth() materialHealth {
	status := k.Status()
	h := materialHealth{
		Use: k.joinedUses(), Fingerprint: status.Material.Fingerprint,
		NotAfter: k.validity(k.uses[0]).NotAfter.UTC(), Loaded: status.Loaded.UTC(),
	}
	if status.Err != nil {
		h.Problem = status.Err.Error()
	}
	return h
}

// ServeHTTP answers with 200 or 503, and the state.
func (r *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := r.healthAt(time.Now())
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
