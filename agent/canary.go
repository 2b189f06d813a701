package agent

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/internal/canary"
)

func (b *builder) hasNoCanary() bool { return b.parts.Canary == nil && b.opts.Canary.off() }

// addCanary adds a canary. Changes may have been missed before it recovers, so it requests a
// resync.
func (b *builder) addCanary() error {
	if b.hasNoCanary() {
		return nil
	}
	write, err := b.canaryWrite()
	if err == nil {
		b.canary, err = canary.New(write, canary.Options{
			Interval: b.opts.Canary.Interval, Recovered: b.outbox.Resync, Probed: b.metrics.CanaryProbed, Logger: b.log,
		})
	}
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	b.pulse.canary = b.canary.State
	return nil
}

func (b *builder) canaryWrite() (canary.Write, error) {
	if b.parts.Canary != nil {
		return b.parts.Canary, nil
	}
	opts := b.opts.Canary
	lease, err := canary.NewLease(opts.Lease, canary.LeaseOptions{
		Server: opts.Server, TokenFile: opts.TokenFile, CAFile: opts.CAFile,
	})
	if err != nil {
		return nil, err
	}
	b.closeCanary = lease.Close
	return lease.Write, nil
}

func (b *builder) canaryComponent() component {
	return component{"canary", func(ctx context.Context) error {
		defer b.closeCanary()
		if b.canary != nil {
			return b.canary.Start(ctx)
		}
		<-ctx.Done()
		return nil
	}}
}
