package httpmtls

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// newClient returns a client that retries a few times within [Options.Timeout]. The outbox does all
// longer waits.
func newClient(transport http.RoundTripper, header http.Header, opts Options) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: keepAlive{transport, header}, CheckRedirect: keepRedirect},
		RetryMax:     max(opts.Retries, 0),
		RetryWaitMin: opts.retryWait / 2,
		RetryWaitMax: opts.retryWait,
		CheckRetry:   opts.checkRetry,
		Backoff:      opts.backoff,
		// The last answer is judged by the forwarder, as any other.
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// keepRedirect makes a redirect an answer like any other: following it could leak the event.
func keepRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// checkRetry is a [retryablehttp.CheckRetry]. It allows a retry of a passing failure, if the
// longest wait ends before the deadline.
func (o Options) checkRetry(ctx context.Context, answer *http.Response, err error) (bool, error) {
	return endsAfter(ctx, o.longestWait()) && passing(answer, err), nil
}

// longestWait returns the longest wait before a retry.
func (o Options) longestWait() time.Duration { return o.retryWait * time.Duration(o.Retries) }

// endsAfter reports whether the deadline of ctx is later than wait from now.
func endsAfter(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Until(deadline) > wait)
}

// passing reports whether a failure may be over in a moment.
func passing(answer *http.Response, err error) bool {
	if err != nil {
		reason := reasonOf(err)
		return (reason == reasonConnection || reason == reasonDial) && !isTimeout(err)
	}
	switch answer.StatusCode {
	case http.StatusBadGateway:
		return true
	case http.StatusServiceUnavailable:
		return answer.Header.Get("Retry-After") == ""
	default:
		return false
	}
}

// backoff is a [retryablehttp.Backoff], which is called once before each retry. It calls
// [Hooks.Retried].
func (o Options) backoff(shortest, longest time.Duration, attempt int, answer *http.Response) time.Duration {
	if o.Hooks.Retried != nil {
		o.Hooks.Retried(statusOf(answer))
	}
	return retryablehttp.LinearJitterBackoff(shortest, longest, attempt, answer)
}

// statusOf returns 0 without an answer.
func statusOf(answer *http.Response) int {
	if answer == nil {
		return 0
	}
	return answer.StatusCode
}

// parseRetryAfter returns the wait that Retry-After asks for, in seconds or until a date (RFC 9110,
// section 10.2.3). It is at most limit, and 0 for a missing or malformed header. A date counts from
// the Date of the answer, as clocks differ, and from now without one.
func parseRetryAfter(header http.Header, now time.Time, limit time.Duration) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	switch date, err := http.ParseTime(value); {
	case value == "":
		return 0
	case isDigits(value):
		return parseSeconds(value, limit)
	case err != nil:
		return 0
	default:
		if sent, err := http.ParseTime(header.Get("Date")); err == nil {
			now = sent
		}
		return min(max(date.Sub(now), 0), limit)
	}
}

// parseSeconds returns limit for a number that is too large for an integer.
func parseSeconds(digits string, limit time.Duration) time.Duration {
	seconds, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || seconds > int64(limit/time.Second) {
		return limit
	}
	return time.Duration(seconds) * time.Second
}

// isDigits reports whether value has only ASCII digits.
func isDigits(value string) bool {
	return strings.IndexFunc(value, func(r rune) bool { return r < '0' || r > '9' }) < 0
}
