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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// Parts are the replaceable parts of an [Agent].
type Parts struct {
	// Source observes the changes. It offers events to inbox until ctx ends and returns after it
	// has stopped. It must not return earlier, except with an error. Default: the webhook.
	Source func(ctx context.Context, inbox *Inbox) error
	// Problem returns why Source does not observe the changes for a manager, or "" if it observes
	// them. Heartbeats report the text as [core.Heartbeat].ConfigError. Problem is called
	// concurrently and must return immediately. Default: none.
	Problem func(core.Manager) string
	// Ready returns nil if Source observes all changes, and otherwise an error that says why it
	// does not observe them yet. The agent is ready when Source is ready. Ready is called
	// concurrently. Default: always ready.
	Ready func() error
	// Transport carries the batches to the control plane. If it is an [io.Closer], it is closed
	// after the last batch. It may have a method RecheckAfter like the method of
	// httpmtls.Forwarder. Default: HTTPS.
	Transport core.Forwarder
	// Tracing wraps the webhook, the inbox of the webhook, and the transport. Package
	// adapters/opentelemetry provides an implementation. Default: none.
	Tracing interface {
		Webhook(next http.Handler) http.Handler
		Acceptor(next core.Acceptor) core.Acceptor
		Forwarder(next core.Forwarder) core.Forwarder
	}

	// Listen binds the ports of the webhook and of the metrics. Default: TCP.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial opens the connections of the default transport. Default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ClientKeys and ServingKeys replace the files of [Connection].Keys and [Webhook].Keys. Each
	// source is read every 5 s. If a source fails, its last valid material stays in use. Default:
	// these files.
	ClientKeys, ServingKeys keys.Source
	// Canary writes a nonce to an object that the webhook watches, and returns the answer of the
	// API server. An error means that nothing was written. It is called by one goroutine and may
	// block until ctx ends. Default: a function that writes [Canary].Lease.
	Canary func(ctx context.Context, nonce string) (CanaryAnswer, error)
	// Configuration returns the webhook configuration of the API server, or nil if it does not
	// exist. An error means that the configuration could not be read. It is called by one goroutine
	// and may block until ctx ends. Default: a function that reads [Webhook].Configuration.
	Configuration func(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error)
	// OwnConfiguration stores the webhook configuration of an agent that maintains its
	// configuration. Default: the object [Webhook].Configuration of the cluster.
	OwnConfiguration ConfigurationStore
	// Now is the clock. If two consecutive calls return times that are far apart, changes may have
	// been missed, and the agent requests a resync. Default: [time.Now].
	Now func() time.Time
}

// CanaryAnswer is the answer of an API server to a write of the canary.
type CanaryAnswer struct {
	// Warnings are the texts of the Warning headers.
	Warnings []string
	// Version is the resourceVersion of the written object. If it is lower than before, the API
	// server was restored from a backup, and the agent requests a resync. Empty: unknown.
	Version string
}

func (p Parts) withDefaults() Parts {
	return option.WithDefaults(p, Parts{
		Tracing: noTracing{},
		Problem: func(core.Manager) string { return "" },
		Ready:   func() error { return nil },
		Listen:  new(net.ListenConfig).Listen,
		Now:     time.Now,
	})
}

type noTracing struct{}

func (noTracing) Webhook(next http.Handler) http.Handler       { return next }
func (noTracing) Acceptor(next core.Acceptor) core.Acceptor    { return next }
func (noTracing) Forwarder(next core.Forwarder) core.Forwarder { return next }

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
		return nil, errors.Join(err, b.release())
	}
	return b.agent(), nil
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

// The time for the shutdown is divided by these: a quarter for requests, half of it for the drain,
// and an eighth for scrapes. The rest is for parts without a deadline.
const requestsPart, drainPart, scrapesPart = 4, 2, 8

// builder makes the parts of an agent, step by step: each step reads the fields that the steps
// before it have set. Only the goroutine of New uses it, so it has no lock.
type builder struct {
	ctx   context.Context //nolint:containedctx // It lives as long as New.
	to    Connection
	parts Parts
	opts  Options
	log   *slog.Logger

	registry   *prom.Registry
	metrics    *watchermetrics.Agent
	keys       keySet
	managers   *managerList
	heartbeats *heartbeats
	transport  core.Forwarder
	closers    []io.Closer // of the transport
	// disconnects counts the connections of the transport that have ended.
	disconnects atomic.Int64
	outbox      *outbox.Outbox
	missed      *missedWatch
	watchdog    *watchdog
	canary      []component // none or one
	webhooks    []component // none or one
	source      component
	ready       *readiness
	observing   component
	bound       []io.Closer // the ports
}

func (b *builder) build() error {
	for _, step := range []func() error{
		b.addManagers, b.addMetrics, b.addKeys, b.addTransport, b.addOutbox, b.addCanary, b.addWebhookWatch,
		b.addObserving, b.addSource,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) release() (err error) {
	for _, port := range b.bound {
		err = errors.Join(err, port.Close())
	}
	return err
}

func (b *builder) addOutbox() error {
	proof := &proof{last: map[core.Manager]time.Time{}}
	b.heartbeats = &heartbeats{
		opts: b.opts, keys: b.keys, proof: proof, canary: func() core.CanaryState { return core.CanaryOff },
		canaryProblem: func() string { return "" }, webhooks: func() string { return "" },
	}
	box, err := outbox.New(b.parts.Tracing.Forwarder(b.transport), b.outboxOptions())
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.outbox = box
	b.metrics.ReadOutbox(box)
	// Before the first heartbeat, as the outbox has not started.
	b.heartbeats.problem = func(manager core.Manager) string {
		return cmp.Or(b.managers.problem(), b.parts.Problem(manager))
	}
	b.missed = &missedWatch{stalled: b.metrics.Stalled, resync: box.Resync, now: b.parts.Now, log: b.log}
	b.watchdog = newWatchdog(&b.heartbeats.calls, b.opts.Outbox)
	if b.keys.client != nil {
		b.keys.client.renewed = box.Retry // The control plane may accept the new certificate.
	}
	return nil
}

func (b *builder) outboxOptions() outbox.Options {
	opts := b.opts.Outbox.options()
	opts.MaxBatch = b.opts.Contract.MaxEvents()
	opts.DrainTimeout = b.opts.ShutdownTimeout / drainPart
	opts.Managers = b.managers.all()
	opts.ResyncFirst = true
	opts.ResyncOwners = b.opts.Contract.NeedsOwner()
	opts.Hooks = outbox.Hooks{Attempted: b.metrics.Attempted}

	if t, ok := b.transport.(interface {
		RecheckAfter(manager core.Manager) time.Duration
	}); ok {
		opts.RecheckAfter = t.RecheckAfter
	}

	opts.Logger = withoutDebug(b.log) // The webhook has a debug line for each event.
	if b.opts.Contract.Numbered() {
		opts.Epoch = newEpoch()
		opts.Heartbeat = b.heartbeats.heartbeat
		opts.Disconnects = b.disconnects.Load
	}
	return opts
}

func (b *builder) addSource() error {
	if b.parts.Source == nil {
		return b.addWebhook()
	}
	inbox := b.inbox()
	b.source = component{"source", func(ctx context.Context) error { return b.parts.Source(ctx, inbox) }}
	return nil
}

func (b *builder) inbox() *Inbox {
	return &Inbox{outbox: b.outbox, missed: b.missed, proof: b.heartbeats.proof, now: b.parts.Now}
}

func (b *builder) agent() *Agent {
	components := []component{b.observing}
	for _, set := range b.keys.all() {
		components = append(components, component{"key material", set.Start})
	}

	for _, c := range b.closers {
		components = append(components, closer("transport", c.Close))
	}

	components = append(components,
		component{"outbox", b.outbox.Start},
		component{"watchdog", b.watchdog.start},
		component{"missed changes", b.missed.start}, // It ends after the source.
		b.managers.component(b.outbox, b.opts.Contract),
		b.source,
	)

	components = append(components, b.canary...) // It proves the webhook, so it follows it.
	components = append(components, b.webhooks...)
	components = append(components, b.controlPlaneCheck(), b.ready.component())
	return &Agent{outbox: b.outbox, log: b.log, components: components, watchdog: b.watchdog}
}

func withoutDebug(log *slog.Logger) *slog.Logger { return slog.New(noDebug{log.Handler()}) }

type noDebug struct{ slog.Handler }

// Enabled returns false for debug, and otherwise the result of the wrapped handler.
func (h noDebug) Enabled(ctx context.Context, level slog.Level) bool {
	return level > slog.LevelDebug && h.Handler.Enabled(ctx, level)
}

func (h noDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noDebug{h.Handler.WithAttrs(attrs)}
}

func (h noDebug) WithGroup(name string) slog.Handler { return noDebug{h.Handler.WithGroup(name)} }

// component is a part of the agent. start blocks until ctx has ended and the part has stopped. The
// part has its own deadline for that.
type component struct {
	name  string
	start func(ctx context.Context) error
}

var errEnded = errors.New("ended by itself")

// runAll starts components in their order. When ctx ends, or one of them fails, it stops them one
// by one in reverse order. So each has the parts that it needs. runAll returns their errors.
func runAll(ctx context.Context, components []component) error {
	ended := make(chan struct{}, len(components))
	var stops []func() error
	for _, c := range components {
		stops = append(stops, c.runInBackground(ctx, ended))
	}

	select {
	case <-ctx.Done():
	case <-ended:
	}

	var err error
	for _, stop := range slices.Backward(stops) {
		err = errors.Join(stop(), err)
	}
	return err
}

// runInBackground starts a component. The caller must call stop, which returns after the component
// has ended.
func (c component) runInBackground(ctx context.Context, ended chan<- struct{}) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	result := make(chan error, 1)
	go func() {
		result <- c.startUntil(ctx)
		ended <- struct{}{}
	}()
	return func() error {
		cancel()
		return <-result
	}
}

// startUntil runs a component, which must not end before ctx does.
func (c component) startUntil(ctx context.Context) error {
	err := c.start(ctx)
	if err == nil && ctx.Err() == nil {
		err = errEnded
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

func closer(name string, closeIt func() error) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()
		if err := closeIt(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	}}
}
