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
	live := &webhookConfiguration{}
	exists, err := s.ReadInto(ctx, live)
	if err != nil || !exists {
		return nil, err
	}
	return live, nil
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
	answer, err := s.Configuration.Apply(ctx, text, opts)
	if err != nil || answer == nil {
		return nil, err
	}

	result := &webhookConfiguration{}
	if err := json.Unmarshal(answer, result); err != nil {
		return nil, fmt.Errorf("agent: webhook configuration: %w", err)
	}
	return result, nil
}

func (s storedConfiguration) Delete(ctx context.Context, live *webhookConfiguration) error {
	return s.Configuration.Delete(ctx, string(live.UID))
}
