package controllerruntime

import (
	"context"
	"errors"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// severalHandlers are the handlers of one manager. Each gets every event.
type severalHandlers []core.Handler

var (
	_ core.Handler = severalHandlers(nil)
	_ core.Readier = severalHandlers(nil)

	_ core.Rechecker = severalHandlers(nil)
)

// asHandler returns a single handler as it is.
func (s severalHandlers) asHandler() core.Handler {
	if len(s) == 1 {
		return s[0]
	}
	return s
}

// Handle returns nil if all handlers accepted the event. While any handler is not ready, no handler
// gets the event, because the ready handlers would also get each resend. A handler that fails does
// not keep the event from the other handlers.
func (s severalHandlers) Handle(ctx context.Context, d core.Delivery) error {
	if err := s.Ready(); err != nil {
		return err
	}

	// The first error decides the next step of the sender. A permanent one must not hide another
	// one that needs the event again.
	var temporary, permanent []error
	for _, handler := range s {
		err := handler.Handle(ctx, d)
		switch {
		case err == nil:
		case core.IsPermanent(err):
			permanent = append(permanent, err)
		default:
			temporary = append(temporary, err)
		}
	}

	if len(temporary) > 0 {
		return errors.Join(temporary...)
	}
	return errors.Join(permanent...)
}

// Ready returns nil if all handlers are ready.
func (s severalHandlers) Ready() error {
	for _, handler := range s {
		if readier, ok := handler.(core.Readier); ok {
			if err := readier.Ready(); err != nil {
				return err
			}
		}
	}
	return nil
}

// RecheckAfter returns the longest delay of the handlers, or 0 if a handler does not check.
func (s severalHandlers) RecheckAfter() (longest time.Duration) {
	for _, handler := range s {
		rechecker, ok := handler.(core.Rechecker)
		if !ok {
			return 0
		}
		after := rechecker.RecheckAfter()
		if after <= 0 {
			return 0
		}
		longest = max(longest, after)
	}
	return longest
}
