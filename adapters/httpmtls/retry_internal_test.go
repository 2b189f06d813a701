package httpmtls

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A retry begins only if the longest wait ends before the deadline, so no wait may be longer.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	opts := Options{}.withDefaults("kcp")
	if opts.retryWait != 50*time.Millisecond || opts.pingAfter != 15*time.Second {
		t.Errorf("retries after %v and pings after %v, want 50 ms and 15 s", opts.retryWait, opts.pingAfter)
	}
	opts.Retries = 5
	client := newClient(nil, nil, opts)
	for attempt := range client.RetryMax {
		grown := time.Duration(attempt+1) * opts.retryWait
		wait := client.Backoff(client.RetryWaitMin, client.RetryWaitMax, attempt, nil)
		if wait < grown/2 || wait > grown || wait > opts.longestWait() {
			t.Errorf("wait %d is %v, want between %v and %v", attempt+1, wait, grown/2, grown)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if endsAfter(ctx, time.Second) || !endsAfter(ctx, time.Second-1) {
			t.Error("want a retry if its wait ends before the deadline, and not at it")
		}
	})
}
