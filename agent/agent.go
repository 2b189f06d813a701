// Package agent composes an agent: a change source, an outbox and a transport. It adds heartbeats,
// metrics, health checks, key material, a canary and the detection of missed changes. [New] builds
// all parts, and [Agent.Start] runs them.
//
// The default source is a webhook for admission reviews, and the default transport is HTTPS with
// client certificates. [Parts] replaces them.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package agent

import (
	"context"
	"errors"
	"log/slog"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Agent is a composition: source → outbox → transport. Create it with [New].
type Agent struct {
	outbox *outbox.Outbox
	log    *slog.Logger
	// components are in the order in which they start. Each needs only those before it.
	components []component
	watchdog   *watchdog
}

// New builds all parts and binds the ports, but starts no part. It fails if an option is invalid,
// key material is broken, or a port is in use. The caller must call [Agent.Start], which releases
// the ports.
//
// The argument to configures the default source and the default transport. It is empty for an agent
// with its own source and its own transport.
func New(ctx context.Context, to Connection, parts Parts, opts Options) (*Agent, error) {
	opts = opts.withDefaults()
	if err := opts.validate(to, parts); err != nil {
		return nil, err
	}

	b := &builder{ctx: ctx, to: to, parts: parts.withDefaults(), opts: opts, log: opts.Logger}
	if err := b.build(); err != nil {
		return nil, errors.Join(err, b.closePorts())
	}
	return b.newAgent(), nil
}

// Start runs the agent until ctx ends or a part fails, and then stops the parts one after another,
// so that pending events are sent. Start returns the errors of all parts. Call Start only once.
//
// With heartbeats at intervals above 30 s, Start also returns an error if the outbox makes no
// progress for ForwardTimeout plus 10 s. Some parts may then still run, so end
// the process.
func (a *Agent) Start(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- runAll(ctx, a.components) }()

	var err error
	select {
	case err = <-ended:
	case <-a.watchdog.hangs:
		return errHangs // The outbox may hold its lock.
	}

	a.log.InfoContext(ctx, "agent stopped", slog.Any("events", a.outbox.Counts()))
	return err
}

// newAgent puts the parts in the order in which they start. The observing part starts first, so
// that a kubelet and a scrape are answered until the end.
func (b *builder) newAgent() *Agent {
	components := []component{b.observing}
	for _, set := range b.keys.allMaterials() {
		components = append(components, component{"key material", set.Start})
	}

	for _, c := range b.closers {
		components = append(components, closer("transport", c.Close))
	}

	components = append(components,
		component{"outbox", b.outbox.Start},
		component{"watchdog", b.watchdog.watchCalls},
		component{"missed changes", b.missed.watchClock}, // It ends after the source.
		b.managers.asComponent(b.outbox, b.opts.Contract),
		b.source,
	)

	components = append(components, b.canary...) // It proves the webhook, so it follows it.
	components = append(components, b.webhooks...)
	components = append(components, b.controlPlaneCheck(), b.ready.asComponent())
	return &Agent{outbox: b.outbox, log: b.log, components: components, watchdog: b.watchdog}
}
