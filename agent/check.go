package agent

import (
	"context"
	"log/slog"

	"github.com/runtime-watcher/runtime-watcher/internal/connect"
)

// controlPlaneCheck connects to the control plane once, and logs the result. Without pending
// events, a wrong address would not be noticed before the first change.
func (b *builder) controlPlaneCheck() component {
	return component{"check of the control plane", func(ctx context.Context) error {
		if b.parts.Transport == nil {
			b.checkControlPlane(ctx)
		}
		<-ctx.Done()
		return nil
	}}
}

func (b *builder) checkControlPlane(ctx context.Context) {
	err := connect.Dial(ctx, b.keys.client, connect.Target{
		Address: b.opts.ControlPlane.Address, ServerName: b.opts.ControlPlane.ServerName, Dial: b.parts.Dial,
	})
	switch address := slog.String("address", b.opts.ControlPlane.Address); {
	case err == nil:
		b.log.InfoContext(ctx, "control plane accepts the connection", address)
	case ctx.Err() == nil:
		b.log.WarnContext(ctx, "cannot connect to the control plane: events are kept until it works",
			address, slog.Any("error", err))
	}
}
