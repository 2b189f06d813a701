package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// agent is the composition: webhook → filter → outbox → forwarder → control plane.
type agent struct {
	outbox *outbox.Outbox
	// components are in the order in which they start: each needs only those before it.
	components []component
}

// deadlines divide the time for the shutdown. Their sum leaves some for what has no deadline.
type deadlines struct{ requests, drain, scrapes time.Duration }

func newDeadlines(total time.Duration) deadlines {
	const quarter = 4

	return deadlines{requests: total / quarter, drain: total / 2, scrapes: total / quarter / 2}
}

// newAgent builds all parts and binds both ports, but starts nothing.
func newAgent(ctx context.Context, c config, log *slog.Logger) (*agent, error) {
	metrics, scrapes, err := newMetrics(c)
	if err != nil {
		return nil, err
	}

	keys, err := newKeys(c, metrics, log)
	if err != nil {
		return nil, err
	}

	forwarder, err := newTransport(c, keys, metrics, log)
	if err != nil {
		return nil, err
	}

	deadlines := newDeadlines(c.shutdown)

	pulse := &pulse{instance: c.instance, version: thisBuild().version, configHash: c.hash(), keys: keys}

	box, err := newOutbox(c, forwarder, pulse, deadlines.drain, metrics, log)
	if err != nil {
		return nil, err
	}

	// Who was refused with the old one need not wait any longer.
	keys.client.renewed = box.Retry

	// What happened while nobody called went by unseen.
	pulse.canary, err = newCanary(c.canary, c.getenv, box.Resync, metrics, log)
	if err != nil {
		return nil, err
	}

	reviews, err := newReviews(c, box, metrics, log)
	if err != nil {
		return nil, err
	}

	ready := &readiness{keys: keys, delay: c.stopDelay, log: log}

	observing, err := bind(ctx, "metrics", c.metrics, newObserving(scrapes, ready), observingOptions(metrics, deadlines.scrapes), log)
	if err != nil {
		return nil, err
	}

	missed := &missedWatch{stalled: metrics.Stalled, resync: box.Resync, log: log}
	webhookTLS := httpmtls.WebhookTLSConfig(keys.serving, keys.callerSource())

	webhook, err := bind(ctx, "webhook", c.webhook, newWebhook(reviews, c.canary),
		webhookOptions(c, webhookTLS, metrics, missed.connectionClosed, deadlines.requests), log)
	if err != nil {
		return nil, errors.Join(err, observing.Close())
	}

	components := []component{observing.component()}
	for _, set := range keys.all() {
		components = append(components, component{"key material", set.Start})
	}

	components = append(components,
		closer("forwarder", forwarder.close),
		component{"outbox", box.Start},
		component{"missed reviews", missed.start}, // It ends after the webhook.
		webhook.component(),
		pulse.canary.component(),
		ready.component(),
	)

	return &agent{outbox: box, components: components}, nil
}

func newForwarder(
	c config, version contract.Version, keys keys, metrics *prometheus.Agent, log *slog.Logger,
) (*httpmtls.Forwarder, error) {
	forwarder, err := httpmtls.NewForwarder(keys.client, c.controlPlane, version, httpmtls.Options{
		ServerName: c.serverName,
		Protocol:   c.protocol,
		Timeout:    c.forwarding,
		UserAgent:  httpmtls.DefaultUserAgent + "/" + thisBuild().version,
		Hooks:      httpmtls.Hooks{Connected: metrics.Connected, Retried: metrics.Retried},
		Logger:     log,
	})
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}

	return forwarder, nil
}

func newOutbox(
	c config, forwarder core.Forwarder, pulse *pulse, drain time.Duration, metrics *prometheus.Agent, log *slog.Logger,
) (*outbox.Outbox, error) {
	opts := outbox.Options{
		Settle:         c.settle,
		Resend:         c.resend,
		ResendResync:   c.resendResync,
		MaxKeys:        c.maxKeys,
		MaxBatch:       c.contract.MaxEvents(),
		ForwardTimeout: c.forwarding,
		MinBackoff:     min(outbox.DefaultMinBackoff, c.maxBackoff),
		MaxBackoff:     c.maxBackoff,
		DrainTimeout:   drain,
		Managers:       c.managers,
		ResyncFirst:    true,
		ResyncOwners:   c.contract.NeedsOwner(),
		Hooks:          outbox.Hooks{Attempted: metrics.Attempted},
		// The handler of the reviews has a debug line per event.
		Logger: withoutDebug(log),
	}

	if c.contract.Numbered() {
		opts.Epoch = newEpoch()
		opts.HeartbeatInterval = c.heartbeats
		opts.Heartbeat = pulse.heartbeat
	}

	box, err := outbox.New(forwarder, opts)
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}

	metrics.ReadOutbox(box)

	return box, nil
}

func newReviews(c config, acceptor core.Acceptor, metrics *prometheus.Agent, log *slog.Logger) (http.Handler, error) {
	handler, err := admission.New(acceptor, admission.Options{
		RequireOwner: c.contract.NeedsOwner(),
		MaxBodies:    maxBodies,
		Logger:       log,
		Hooks: admission.Hooks{
			InFlight:     metrics.InFlight,
			Reviewed:     metrics.Reviewed,
			Refused:      metrics.Refused,
			OwnerProblem: metrics.OwnerProblem,
			Panicked:     metrics.Panicked,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}

	return handler, nil
}

// total returns the fates of all events.
func (a *agent) total() fates {
	var sum fates

	for _, counts := range a.outbox.Counts() {
		sum.accepted += counts.Accepted
		sum.delivered += counts.Delivered
		sum.coalesced += counts.Coalesced
		sum.pending += counts.Pending

		for _, n := range counts.Dropped {
			sum.dropped += n
		}
	}

	return sum
}

// fates are those of events, over all managers.
type fates struct{ accepted, delivered, coalesced, dropped, pending int64 }

// LogValue has the words of the metrics.
func (f fates) LogValue() slog.Value {
	return slog.GroupValue(slog.Int64("accepted", f.accepted), slog.Int64("delivered", f.delivered),
		slog.Int64("coalesced", f.coalesced), slog.Int64("dropped", f.dropped), slog.Int64("pending", f.pending))
}
