package agent

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/canary"
)

type agentCanary struct {
	*canary.Canary

	closed func()
}

func (b *builder) hasNoCanary() bool { return b.parts.Canary == nil && b.opts.Canary.off() }

// addCanary adds a canary. Changes may have been missed before it recovers, so it requests a
// resync.
func (b *builder) addCanary() error {
	b.canary = &agentCanary{}
	b.pulse.canary = b.canary

	if b.hasNoCanary() {
		return nil
	}

	write, err := b.canaryWrite()
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.canary.Canary, err = canary.New(write, canary.Options{
		Interval: b.opts.Canary.Interval, Recovered: b.outbox.Resync, Probed: b.metrics.CanaryProbed, Logger: b.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	return nil
}

func (b *builder) canaryWrite() (canary.Write, error) {
	if b.canary.closed = func() {}; b.parts.Canary != nil {
		return b.parts.Canary, nil
	}
	opts := b.opts.Canary
	lease, err := canary.NewLease(opts.Lease, canary.LeaseOptions{
		Server: opts.Server, TokenFile: opts.TokenFile, CAFile: opts.CAFile,
	})
	if err != nil {
		return nil, err
	}
	b.canary.closed = lease.Close
	return lease.Write, nil
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
		defer a.closed()
		return a.Start(ctx)
	}}
}
