package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// storedConfiguration is the configuration at the API server of the runtime. The keeper reads and
// applies it, the check of the webhooks reads it, and [WebhookProblem] applies it as a dry run.
type storedConfiguration struct {
	*canary.Configuration

	dryRun bool
}

func newStoredConfiguration(opts Options) (storedConfiguration, error) {
	stored, err := canary.NewConfiguration(opts.Webhook.Configuration, opts.Canary.apiServer())
	if err != nil {
		return storedConfiguration{}, fmt.Errorf("agent: %w", err)
	}
	return storedConfiguration{Configuration: stored}, nil
}

func (s storedConfiguration) Read(ctx context.Context) (*webhookConfiguration, error) {
	return canary.DecodeConfiguration[webhookConfiguration](s.Configuration.Read(ctx))
}

func (s storedConfiguration) Apply(
	ctx context.Context, want, live *webhookConfiguration,
) (*webhookConfiguration, error) {
	next := want.DeepCopy()
	if live != nil {
		next.UID = live.UID // An API server refuses another UID.
	}
	text, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("agent: webhook configuration: %w", err)
	}

	opts := canary.ApplyOptions{Force: live != nil, DryRun: s.dryRun}
	return canary.DecodeConfiguration[webhookConfiguration](s.Configuration.Apply(ctx, text, opts))
}

func (s storedConfiguration) Delete(ctx context.Context, live *webhookConfiguration) error {
	return s.Configuration.Delete(ctx, string(live.UID))
}
