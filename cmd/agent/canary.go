package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// canarySettings are those of the canary. Without a lease there is none.
type canarySettings struct {
	lease             types.NamespacedName
	interval          time.Duration
	server, token, ca string
}

func (s canarySettings) off() bool { return s.lease == types.NamespacedName{} }

// agentCanary is the agent's canary, or none.
type agentCanary struct {
	lease *canary.Lease
	*canary.Canary
}

// newCanary returns a canary after whose return recovered is called.
func newCanary(s canarySettings, getenv func(string) string, recovered func(), metrics *prometheus.Agent, log *slog.Logger) (*agentCanary, error) {
	if s.off() {
		return &agentCanary{}, nil
	}

	lease, err := canary.NewLease(s.lease, canary.LeaseOptions{Server: s.server, TokenFile: s.token, CAFile: s.ca, Getenv: getenv})
	if err != nil {
		return nil, err //nolint:wrapcheck // It names the canary, and what it wants.
	}

	c, err := canary.New(lease, canary.Options{Interval: s.interval, Recovered: recovered, Probed: metrics.CanaryProbed, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}

	return &agentCanary{lease, c}, nil
}

// state is what heartbeats tell.
func (a *agentCanary) state() core.CanaryState {
	if a.Canary == nil {
		return core.CanaryOff
	}

	return a.State()
}

// component follows the webhook, without which there is nothing to come back.
func (a *agentCanary) component() component {
	return component{"canary", func(ctx context.Context) error {
		if a.Canary == nil {
			<-ctx.Done()

			return nil
		}

		defer a.lease.Close()

		return a.Start(ctx)
	}}
}

// newWebhook returns what the webhook port serves: reviews, and the canary's if there is one.
func newWebhook(reviews http.Handler, s canarySettings) http.Handler {
	if s.off() {
		return reviews
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == canary.Path {
			canary.Handler{}.ServeHTTP(w, r)
		} else {
			reviews.ServeHTTP(w, r)
		}
	})
}
