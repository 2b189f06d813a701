package httpmtls

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// checkRetry is a [retryablehttp.CheckRetry]. It allows a retry of a passing failure, if the
// longest wait ends before the deadline.
func (o Options) checkRetry(ctx context.Context, answer *http.Response, err error) (bool, error) {
	return endsAfter(ctx, o.longestWait()) && isPassing(answer, err), nil
}

func (o Options) longestWait() time.Duration { return o.retryWait * time.Duration(o.Retries) }

func endsAfter(ctx context.Context, wait time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}

	deadline, hasDeadline := ctx.Deadline()
	return !hasDeadline || time.Until(deadline) > wait
}

// isPassing reports whether a failure may be over in a moment.
func isPassing(answer *http.Response, err error) bool {
	if err != nil {
		reason := reasonOf(err)
		isOfConnection := reason == ReasonConnection || reason == ReasonDial
		return isOfConnection && !isTimeout(err)
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

// reportRetry is a [retryablehttp.Backoff]. It is called once before each retry, so it calls
// [Hooks.Retried].
func (o Options) reportRetry(shortest, longest time.Duration, attempt int, answer *http.Response) time.Duration {
	status := 0
	if answer != nil {
		status = answer.StatusCode
	}

	o.Hooks.Retried(hook.Retry{Status: status})
	return retryablehttp.LinearJitterBackoff(shortest, longest, attempt, answer)
}
