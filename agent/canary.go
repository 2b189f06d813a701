package agent

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// agentCanary is the canary of the agent, if it has one.
type agentCanary struct {
	lease *canary.Lease
	*canary.Canary
}

// addCanary adds a canary. Changes may have been missed before it recovers, so it requests a
// resync.
func (b *builder) addCanary() error {
	b.canary = &agentCanary{}
	b.pulse.canary = b.canary

	if b.opts.Canary.off() {
		return nil
	}

	lease, err := canary.NewLease(b.opts.Canary.Lease, b.opts.Canary.LeaseOptions)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.canary.lease = lease
	b.canary.Canary, err = canary.New(lease, canary.Options{
		Interval: b.opts.Canary.Interval, Recovered: b.outbox.Resync, Probed: b.metrics.CanaryProbed, Logger: b.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	return nil
}

func (a *agentCanary) state() core.CanaryState {
	if a.Canary == nil {
		return core.CanaryOff
	}
	return a.State()
}

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
