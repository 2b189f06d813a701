package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/managersfile"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// build runs the steps in their order. Each step needs the fields that the steps before it have
// set.
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

func (b *builder) addManagers() error {
	opts := b.opts
	isListed := len(opts.Managers) > 0 || opts.ManagersFile != ""
	b.managers = &managerList{
		fixed:  opts.Managers,
		path:   opts.ManagersFile,
		open:   opts.OtherManagers || !isListed,
		now:    b.parts.Now,
		log:    b.log,
		broken: func(bool) {},
	}
	b.managers.added.Store(&[]core.Manager{})
	if b.managers.path == "" {
		return nil
	}

	managers, err := managersfile.Others(opts.Managers, opts.ManagersFile)
	if err != nil {
		return fmt.Errorf("agent: managers: %w", err)
	}

	b.managers.added.Store(&managers)
	b.managers.listed = managers
	return nil
}

func (b *builder) addKeys() error {
	webhook := b.opts.Webhook
	shared := webhook.Keys == (keys.Paths{}) && b.parts.ServingKeys == nil && b.parts.Source == nil
	clientUses := []string{useClient}
	if shared {
		clientUses = append(clientUses, useServer)
	}

	var errs [3]error
	b.keys.client, errs[0] = b.newKeyMaterial(b.parts.ClientKeys, b.to.Keys, clientUses...)
	b.keys.serving, errs[1] = b.newKeyMaterial(b.parts.ServingKeys, webhook.Keys, useServer)
	b.keys.callers, errs[2] = b.newKeyMaterial(nil, keys.Paths{CA: webhook.ClientCAs}, useWebhookCAs)

	if shared {
		b.keys.serving = b.keys.client
	}
	return errors.Join(errs[:]...)
}

// newKeyMaterial follows a source, or else files. It returns nil without either.
func (b *builder) newKeyMaterial(source keys.Source, paths keys.Paths, uses ...string) (*keyMaterial, error) {
	if source == nil && paths == (keys.Paths{}) {
		return nil, nil
	}

	k := &keyMaterial{uses: uses, renewed: func() {}, metrics: b.metrics}
	k.log = b.log.With(slog.String("use", k.joinedUses()))
	var err error

	hooks := keys.FilesHooks{Reloaded: k.noteReload, Refused: k.noteRefusal}
	if source != nil {
		k.material, err = follow(source, hooks)
	} else {
		k.material, err = keys.NewFiles(paths, keys.FilesOptions{Logger: k.log, Hooks: hooks})
	}

	if err != nil {
		return nil, err
	}
	if slices.Contains(uses, useServer) && k.Status().Material.Certificate == nil {
		return nil, fmt.Errorf("agent: key material of use %q: want a certificate with its key", k.joinedUses())
	}

	k.measureExpiry()
	k.warnOfServing()
	return k, nil
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
		return cmp.Or(b.managers.fileProblem(), b.parts.Problem(manager))
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
	opts.Managers = b.managers.allManagers()
	opts.ResyncFirst = true
	opts.ResyncOwners = b.opts.Contract.NeedsOwner()
	opts.Hooks = outbox.Hooks{Attempted: b.metrics.Attempted}

	// The forwarder that traces calls does not have this method, so the transport below it answers.
	if t, ok := b.transport.(interface {
		RecheckAfter(manager core.Manager) time.Duration
	}); ok {
		opts.RecheckAfter = t.RecheckAfter
	}

	opts.Logger = withoutDebug(b.log) // The webhook has a debug line for each event.
	if b.opts.Contract.Numbered() {
		opts.Epoch = newEpoch()
		opts.Heartbeat = b.heartbeats.makeHeartbeat
		opts.Disconnects = b.disconnects.Load
	}
	return opts
}

func (b *builder) addSource() error {
	if b.parts.Source == nil {
		return b.addWebhook()
	}

	inbox := b.newInbox()
	b.source = component{"source", func(ctx context.Context) error { return b.parts.Source(ctx, inbox) }}
	return nil
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
