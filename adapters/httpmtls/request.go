package httpmtls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// maxKept bounds the bytes of an answer that an error keeps.
	maxKept = 1 << 10
	// maxFailures is in bytes, and more than an answer that names every event.
	maxFailures = 64 << 10
)

func (f *Forwarder) send(ctx context.Context, target *url.URL, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()
	select {
	// A request also waits for its slot within its timeout.
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return failure(target, reasonOf(ctx.Err()), ctx.Err())
	}

	return f.ofEvent(f.attempt(ctx, target, m), m)
}

func (f *Forwarder) attempt(ctx context.Context, target *url.URL, m *message) error {
	pool, err := f.acquire()
	switch {
	case errors.Is(err, errClosed):
		return failure(target, ReasonClosed, err)
	case err != nil:
		return failure(target, ReasonMaterial, err)
	}
	defer pool.release()

	request, err := f.request(ctx, target, m.Body)
	if err != nil {
		return failure(target, ReasonConnection, err)
	}

	answer, err := pool.client.Do(request)
	if err != nil {
		// The connection may be dead.
		if isTimeout(err) {
			f.leave(pool)
		}
		return failure(target, reasonOf(err), reasons.Plain(withoutURL(err)))
	}
	defer answer.Body.Close()
	err = f.read(target, answer, m)
	// The name may lead to another gateway by now, and an open connection does not follow it.
	if pool.noteAnswer(err) > f.opts.leaveAfter {
		f.leave(pool)
	}
	return err
}

func (f *Forwarder) request(ctx context.Context, target *url.URL, body []byte) (*retryablehttp.Request, error) {
	bare := http.Request{Method: http.MethodPost, URL: target, Host: target.Host, Header: http.Header{}}
	request, err := retryablehttp.FromRequest(bare.WithContext(ctx))
	if err == nil {
		err = request.SetBody(body)
	}
	return request, err // The caller wraps it.
}

func (f *Forwarder) read(target *url.URL, answer *http.Response, m *message) error {
	const firstSuccess, lastSuccess = 200, 299
	// RFC 9110, section 15.3.
	if answer.StatusCode >= firstSuccess && answer.StatusCode <= lastSuccess {
		err := f.readSuccess(target, answer)
		if err == nil && f.version.Numbered() {
			m.recheckAfter = contract.ParseRecheckAfter(answer.Header.Get(contract.RecheckAfterHeader))
		}
		return err
	}
	kept, readErr := io.ReadAll(io.LimitReader(answer.Body, maxFailures))
	decoded := contract.DecodeAnswer(answer.StatusCode, kept, m.Elements())
	decoded.RetryAfter = parseRetryAfter(answer.Header, time.Now(), maxRetryAfter)
	if len(decoded.Failed) > 0 {
		return f.eventErrors(target, decoded.Failed, m)
	}
	failed := f.refusal(target, decoded.Refusal, isWebPage(answer.Header))
	failed.Body = cmp.Or(string(decoded.Reason), string(bytes.TrimSpace(kept)))
	failed.Body = failed.Body[:min(len(failed.Body), maxKept)]
	failed.Err = errors.Join(failed.Err, readErr)
	return failed
}

// errForeignSuccess means that a gateway answered, and not a receiver.
var errForeignSuccess = errors.New("not an answer of a receiver: check the route to the control plane")

// readSuccess distinguishes an acknowledgement from the page of a gateway: contract v3 has exactly
// one status, and no contract has a body. Deployed receivers of contracts v1 and v2 may answer any
// 2xx.
func (f *Forwarder) readSuccess(target *url.URL, answer *http.Response) error {
	foreign := answer.ContentLength > 0 || answer.ContentLength < 0 && answer.Header.Get("Content-Type") != ""
	reason := core.ReasonGatewayRefused
	if f.version == contract.V3 {
		reason = core.ReasonUnknownContract
		foreign = foreign || answer.StatusCode != f.version.Status()
	}
	if !foreign {
		return nil
	}
	failed := failure(target, reason, errForeignSuccess)
	failed.Status = answer.StatusCode
	failed.retryAfter = max(f.opts.RefusedRetryAfter, 0)
	return failed
}

// ofEvent returns the error as one of the only event, if a contract carries one event and only the
// event can be the cause. Deployed listeners of contracts v1 and v2 name no index.
func (f *Forwarder) ofEvent(err error, m *message) error {
	failed, ok := errors.AsType[*requestError](err)
	if ok && f.version.MaxEvents() == 1 && (failed.permanent || failed.reason == reasons.Forbidden) {
		return core.EventErrors{m.index(0): err}
	}
	return err
}

// isWebPage reports whether an answer is HTML. A gateway may write it, a listener never does.
func isWebPage(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	return mediaType == "text/html"
}

func (f *Forwarder) eventErrors(target *url.URL, refused map[int]contract.Refusal, m *message) core.EventErrors {
	all := make(core.EventErrors, len(refused))
	for element, r := range refused {
		r.RetryAfter = min(r.RetryAfter, maxRetryAfter)
		failed := f.refusal(target, r, false)
		failed.Body = string(r.Reason)[:min(len(r.Reason), maxKept)]
		failed.named = true
		all[m.index(element)] = failed
	}
	return all
}

// refusal returns the error for a refusal. page is whether the answer was HTML.
func (f *Forwarder) refusal(target *url.URL, r contract.Refusal, page bool) *requestError {
	meaning := f.version.Interpret(r, page)
	failed := failure(target, meaning.Reason, meaning.Cause)
	failed.Status = r.Status
	failed.permanent = meaning.Permanent
	switch {
	case meaning.Permanent:
	// The contract asks for a long wait, but the answer has none.
	case meaning.Slow && r.RetryAfter == 0:
		failed.retryAfter = max(f.opts.RefusedRetryAfter, 0)
	default:
		failed.retryAfter = r.RetryAfter
	}
	return failed
}

func failure(target *url.URL, reason core.Reason, err error) *requestError {
	return &requestError{URL: target.String(), Err: err, reason: reason}
}

// withoutURL removes the wrapper of net/http, because a [*requestError] has the URL itself.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// newClient retries a few times within [Options.Timeout]. The outbox does all longer waits.
func newClient(pool *pool, header http.Header, opts Options) *retryablehttp.Client {
	// A redirect is an answer like any other: following it could leak the event.
	keepRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: keepAlive{pool, header}, CheckRedirect: keepRedirect},
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

// backoff is called once before each retry, so it calls [Hooks.Retried].
func (o Options) backoff(shortest, longest time.Duration, attempt int, answer *http.Response) time.Duration {
	status := 0
	if answer != nil {
		status = answer.StatusCode
	}
	o.Hooks.Retried(hook.Retry{Status: status})
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
