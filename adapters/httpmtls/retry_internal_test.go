package httpmtls

import (
	"testing"
	"time"
)

// A retry begins only if the longest wait ends before the deadline, so no wait may be longer.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	opts := Options{retryWait: time.Second, Retries: 5}
	client := newClient(nil, nil, opts)
	for attempt := range client.RetryMax {
		grown := time.Duration(attempt+1) * opts.retryWait
		wait := client.Backoff(client.RetryWaitMin, client.RetryWaitMax, attempt, nil)
		if wait < grown/2 || wait > grown || wait > opts.longestWait() {
			t.Errorf("wait %d is %v, want between %v and %v", attempt+1, wait, grown/2, grown)
		}
	}
}
