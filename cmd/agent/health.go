package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// readiness tells whether the API server should call this agent. It does not depend on the control plane: events are kept for it
// meanwhile, and who is not called misses them.
type readiness struct {
	keys  keys
	delay time.Duration
	log   *slog.Logger

	serving atomic.Bool
}

// health is the body of /readyz.
type health struct {
	Ready       bool             `json:"ready"`
	Serving     bool             `json:"serving"`
	KeyMaterial []materialHealth `json:"keyMaterial"`
}

type materialHealth struct {
	Use         string    `json:"use"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	NotAfter    time.Time `json:"notAfter"`
	Loaded      time.Time `json:"loaded"`
	// Problem says why the files as they are now are not in use. That alone is no reason not to be ready.
	Problem string `json:"problem,omitempty"`
}

// component is ready from its start on, and is the first to stop: other replicas shall be called while this one still answers.
func (r *readiness) component() component {
	return component{"readiness", func(ctx context.Context) error {
		r.serving.Store(true)
		<-ctx.Done()
		r.serving.Store(false)
		r.log.InfoContext(ctx, "agent stops", slog.Duration("delay", r.delay))

		pause(context.WithoutCancel(ctx), r.delay)

		return nil
	}}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// health is as of this moment. No API server calls a webhook whose certificate has expired.
func (r *readiness) health(now time.Time) health {
	h := health{Serving: r.serving.Load()}
	h.Ready = h.Serving && now.Before(r.keys.serving.Status().Material.NotAfter)

	for _, set := range r.keys.all() {
		status := set.Status()
		m := materialHealth{
			Use: set.name(), Fingerprint: status.Material.Fingerprint, NotAfter: set.expiry(set.uses[0]).UTC(), Loaded: status.Loaded.UTC(),
		}

		if status.Err != nil {
			m.Problem = status.Err.Error()
		}

		h.KeyMaterial = append(h.KeyMaterial, m)
	}

	return h
}

// ServeHTTP answers 200 or 503, and says why.
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

// alive answers 200 as long as the process can.
func alive(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
