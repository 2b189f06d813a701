package httpmtls

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// newClient returns a client that retries a few times within [Options.Timeout]. The outbox does all
// longer waits.
func newClient(transport http.RoundTripper, header http.Header, opts Options) *retryablehttp.Client {
	// A redirect is an answer like any other: following it could leak the event.
	keepRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
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

// checkRetry is a [retryablehttp.CheckRetry]. It allows a retry of a passing failure, if the
// longest wait ends before the deadline.
func (o Options) checkRetry(ctx context.Context, answer *http.Response, err error) (bool, error) {
	return endsAfter(ctx, o.longestWait()) && passing(answer, err), nil
}

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
	status := 0
	if answer != nil {
		status = answer.StatusCode
	}
	o.Hooks.Retried(status)
	return retryablehttp.LinearJitterBackoff(shortest, longest, attempt, answer)
}

// parseRetryAfter returns the wait that Retry-After asks for, in seconds or until a date (RFC 9110,
// section 10.2.3). It is at most limit, and 0 for a missing or malformed header. A date counts from
// the Date of the answer, as clocks differ, and from now without one.
func parseRetryAfter(header http.Header, now time.Time, limit time.Duration) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	// A number without sign. One that is too large for 31 bits is the largest that is not.
	seconds, err := strconv.ParseUint(value, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(seconds)*time.Second, limit)
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(header.Get("Date")); err == nil {
		now = sent
	}
	return min(max(date.Sub(now), 0), limit)
}
