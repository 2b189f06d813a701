package listener

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// resyncHandlers returns the handlers for the resyncs of the fleet.
func (l *Listener) resyncHandlers() map[core.Manager]core.Handler {
	handlers := make(map[core.Manager]core.Handler, len(l.handlers))
	for manager, handler := range l.handlers {
		handlers[manager] = l.recovering(handler)
	}
	return handlers
}

// recovering returns a handler that turns panics into errors. The fleet tries again after an error.
func (l *Listener) recovering(handler core.Handler) core.Handler {
	return core.HandlerFunc(func(ctx context.Context, d core.Delivery) (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("%w: %v", errPanic, cause)
				l.opts.Logger.LogAttrs(ctx, slog.LevelError, "panic while a resync was handled",
					slog.Any("error", err), slog.String("stack", string(debug.Stack())))
			}
		}()
		return handler.Handle(ctx, d)
	})
}
