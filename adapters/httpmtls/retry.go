package httpmtls

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// newClient returns a client that bridges what is over in a moment. Everything longer is the outbox's.
func newClient(transport http.RoundTripper, opts Options) *retryablehttp.Client {
	longest := opts.RetryWait << maxRetryDoublings

	return &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: transport,
			// A redirect could carry the event to somebody else: it is an answer like any other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		RetryMax:     max(opts.Retries, 0),
		RetryWaitMin: opts.RetryWait,
		RetryWaitMax: longest,
		CheckRetry: func(ctx context.Context, answer *http.Response, err error) (bool, error) {
			return endsAfter(ctx, longest) && passing(answer, err), nil
		},
		Backoff: backoff(opts.Hooks.Retried),
		// Without it, the last answer would be lost.
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// maxRetryDoublings bounds the wait between short retries.
const maxRetryDoublings = 3

// endsAfter reports whether a wait that long leaves time for another attempt: otherwise the failure is worth more than a
// deadline exceeded.
func endsAfter(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()

	return ctx.Err() == nil && (!ok || time.Until(deadline) > wait)
}

// passing reports whether a failure may be over in a moment.
func passing(answer *http.Response, err error) bool {
	if err != nil {
		reason := reasonOf(err)

		return (reason == ReasonConnection || reason == ReasonDial) && !isTimeout(err)
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

// backoff also reports, because retryablehttp asks for it exactly when it is about to try again.
func backoff(retried func(status int)) retryablehttp.Backoff {
	return func(shortest, longest time.Duration, attempt int, answer *http.Response) time.Duration {
		if retried != nil {
			retried(statusOf(answer))
		}

		wait := min(shortest<<min(attempt, maxRetryDoublings), longest)

		return wait/2 + rand.N(wait/2+1) //nolint:gosec // It spreads retries, and guards nothing.
	}
}

func statusOf(answer *http.Response) int {
	if answer == nil {
		return 0
	}

	return answer.StatusCode
}
