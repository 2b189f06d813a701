package intake

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// protect calls a verifier or a handler. After a panic it calls failed, and logs the stack.
func (in *Intake) protect(ctx context.Context, call func(), failed func(error)) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}

		err := &panicked{cause}
		failed(err)
		in.opts.Logger.LogAttrs(ctx, slog.LevelError, "panic while receiving a batch",
			slog.Any("error", err), slog.String("stack", string(debug.Stack())))
	}()

	call()
}

// panicked is the error of a panic: the same event may be taken later.
type panicked struct{ cause any }

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.cause) }

func (p *panicked) Reason() string { return reasons.Panic }

// protected is the handler of a manager for the fleet. A panic costs one attempt.
type protected struct {
	in      *Intake
	manager core.Manager
}

func (p protected) Handle(ctx context.Context, d core.Delivery) (err error) {
	p.in.protect(ctx, func() { err = p.in.handlers[p.manager].Handle(ctx, d) }, func(cause error) { err = cause })
	return err
}

// Ready implements [core.Readier]: a replica that does not lead expects no runtime.
func (p protected) Ready() (err error) {
	p.in.protect(context.Background(), func() { err = p.in.Ready(p.manager) }, func(cause error) { err = cause })
	return err
}

// DeliverResyncs delivers the resyncs of the fleet to the handlers until ctx ends. Without a fleet
// it returns immediately. It fails for the reasons for which [fleet.Receiver.Start] fails.
func (in *Intake) DeliverResyncs(ctx context.Context) error {
	if in.opts.Fleet == nil {
		return nil
	}
	handlers := make(map[core.Manager]core.Handler, len(in.handlers))
	for manager := range in.handlers {
		handlers[manager] = protected{in, manager}
	}
	return in.opts.Fleet.Receiver().Start(ctx, handlers)
}

// RecheckAfter returns the delay after which the handler of a manager requests a reconcile again,
// or 0 if the handler is not a [core.Rechecker]. Call it before [Intake.Receive].
func (in *Intake) RecheckAfter(ctx context.Context, manager core.Manager) (after time.Duration) {
	r, ok := in.handlers[manager].(core.Rechecker)
	if ok {
		in.protect(ctx, func() { after = r.RecheckAfter() }, func(error) { after = 0 })
	}
	return after
}
