// Package periodic waits for the next time to do something, or for the end of a context.
package periodic

import (
	"context"
	"time"
)

// Call calls f after each period, until ctx ends.
func Call(ctx context.Context, period time.Duration, f func()) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()

	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}

		if ctx.Err() != nil {
			return
		}

		f()
	}
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
