package httpmtls

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// Seconds and dates are bounded by 5 min, and a malformed header means no wait.
func TestParseRetryAfter(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"1":                              time.Second,
		" 120 ":                          2 * time.Minute,
		"301":                            5 * time.Minute,
		"9223372036854775807":            5 * time.Minute,
		"99999999999999999999999":        5 * time.Minute,
		"-1":                             0,
		"+1":                             0,
		"1.5":                            0,
		"1s":                             0,
		"soon":                           0,
		"Fri, 02 Jan 2026 03:04:35 GMT":  30 * time.Second,
		"Friday, 02-Jan-26 03:04:35 GMT": 30 * time.Second,
		"Fri Jan  2 03:04:35 2026":       30 * time.Second,
		"Fri, 02 Jan 2026 03:04:04 GMT":  0,
		"Fri, 02 Jan 2099 03:04:05 GMT":  5 * time.Minute,
	} {
		if got := parseRetryAfter(http.Header{"Retry-After": {value}}, now, 5*time.Minute); got != want {
			t.Errorf("Retry-After %q: have %v, want %v", value, got, want)
		}
	}

	skewed := http.Header{"Date": {"Fri, 02 Jan 2026 05:00:00 GMT"}, "Retry-After": {"Fri, 02 Jan 2026 05:00:20 GMT"}}
	if got := parseRetryAfter(skewed, now, time.Hour); got != 20*time.Second {
		t.Errorf("with a clock that differs: have %v, want 20 s", got)
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, seed := range []string{
		"", "0", "120", "-1", "99999999999999999999", "Fri, 02 Jan 2026 03:04:35 GMT", "Fri Jan  2 03:04:35 2026",
	} {
		f.Add(seed, "")
		f.Add(seed, "Fri, 02 Jan 2026 03:04:05 GMT")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		got := parseRetryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, time.Unix(0, 0), time.Minute)
		if got < 0 || got > time.Minute {
			t.Errorf("have %v, want between 0 and a minute", got)
		}
	})
}

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
