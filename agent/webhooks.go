package agent

import (
	"context"
	"log/slog"

	"github.com/runtime-watcher/runtime-watcher/keys"
)

// addWebhookWatch is without effect unless the configuration can be read.
func (b *builder) addWebhookWatch() error {
	if b.opts.Webhook.Own.isOn() {
		return b.addWebhookKeeper()
	}

	read := b.parts.Configuration
	name := b.opts.Webhook.Configuration
	if read == nil && name == "" {
		return nil
	}

	if read == nil {
		stored, err := newStoredConfiguration(b.opts)
		if err != nil {
			return err
		}
		read = stored.Read
	}

	watch := &webhookWatch{
		read: read, every: b.opts.canaryInterval(),
		countCheck: b.metrics.WebhooksChecked, requestResync: b.outbox.Resync,
		log: lineLimiter{to: b.log},
	}
	b.heartbeats.webhooks = watch.foundProblem
	b.webhooks = []component{{"comparison of webhooks", watch.watchConfiguration}}
	return nil
}

// WebhookProblem reads a webhook configuration with the settings of an agent. It returns how the
// webhooks differ from the webhooks that were applied, or "" if they do not differ. With
// [Webhook].Own, it compares them with the webhooks of its watches and tries an apply as a dry run.
// The webhooks of a replica with other settings differ only if they call for less.
func WebhookProblem(ctx context.Context, to Connection, opts Options) (string, error) {
	store, err := newStoredConfiguration(opts)
	if err != nil {
		return "", err
	}

	store.dryRun = true
	live, err := store.Read(ctx)
	if err != nil {
		return "", err
	}
	if !opts.Webhook.Own.isOn() {
		return webhookProblem(live), nil
	}

	paths := opts.Webhook.Keys
	if paths == (keys.Paths{}) {
		paths = to.Keys
	}
	serving, err := keys.NewFiles(paths, keys.FilesOptions{})
	if err != nil {
		return "", err
	}

	own := newIntended(opts, serving, to.Keys.CA)
	want, err := own.buildConfiguration()
	if err != nil {
		return bounded(err.Error()), nil
	}
	state, problem := own.judge(live, want)
	switch state {
	case standsForeign:
		return bounded(problem), nil
	case standsOfPeer:
		missing := lessThan(live, want)
		if missing != "" {
			problem = writtenByPeer + ": " + missing
		}
	default: // The problem of judge is complete.
	}

	_, err = store.Apply(ctx, want, live)
	return bounded(problem), err
}

func (b *builder) addWebhookKeeper() error {
	store, err := b.configurationStore()
	if err != nil {
		return err
	}

	want := newIntended(b.opts, b.keys.serving, b.to.Keys.CA)
	if _, err := want.buildConfiguration(); err != nil {
		b.log.Warn("cannot build the webhook configuration yet", slog.String("problem", err.Error()))
	}

	keeper := &webhookKeeper{
		store: store, want: want,
		answers:    func() bool { return b.ready.probed.Load() },
		every:      b.opts.canaryInterval(),
		countCheck: b.metrics.WebhooksChecked, requestResync: b.outbox.Resync,
		log: lineLimiter{to: b.log},
	}

	b.heartbeats.webhooks = keeper.shownProblem
	b.webhooks = []component{{"webhook configuration", keeper.keepWebhooks}}
	return nil
}

func (b *builder) configurationStore() (ConfigurationStore, error) {
	if b.parts.OwnConfiguration != nil {
		return b.parts.OwnConfiguration, nil
	}
	return newStoredConfiguration(b.opts)
}
