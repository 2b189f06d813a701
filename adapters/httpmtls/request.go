package httpmtls

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

const (
	// maxKept is what an error keeps of an answer.
	maxKept = 1 << 10
	// maxFailures is ample for an answer that names every event of a batch.
	maxFailures = 64 << 10
)

// send sends a batch, in one request if it fits, and returns nil, [core.EventErrors] or an [*Error].
func (f *Forwarder) send(ctx context.Context, target *url.URL, batch []core.WatchEvent) error {
	body, err := f.version.Encode(batch)
	if err != nil && len(batch) > 1 {
		return f.sendHalves(ctx, target, batch) // Too large together, or one of them can not be carried.
	}

	if err != nil {
		return &Error{Method: http.MethodPost, URL: target.String(), Err: err, reason: ReasonUnsendable, permanent: true}
	}

	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()

	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return failure(target, reasonOf(ctx.Err()), ctx.Err())
	}

	return f.post(ctx, target, body, len(batch))
}

func (f *Forwarder) sendHalves(ctx context.Context, target *url.URL, batch []core.WatchEvent) error {
	halves := result{total: len(batch)}
	middle := len(batch) / 2 //nolint:mnd // A half.

	if halves.add(middle, f.send(ctx, target, batch[:middle])) {
		halves.add(len(batch)-middle, f.send(ctx, target, batch[middle:]))
	}

	return halves.err()
}

// post sends a body that carries so many events. A refusal of key material that was replaced meanwhile says nothing of the new one, which is
// tried at once: the wait that a refusal asks for is long.
func (f *Forwarder) post(ctx context.Context, target *url.URL, body []byte, events int) error {
	used, err := f.attempt(ctx, target, body, events)
	if refusesMaterial(err) && f.hasReplaced(used) {
		_, err = f.attempt(ctx, target, body, events)
	}

	return err
}

// refusesMaterial reports whether another certificate, or another CA bundle, may fare better.
func refusesMaterial(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}

	switch failed.reason {
	case ReasonUnauthenticated, ReasonForbidden, ReasonGatewayRefused, ReasonTLSRefused, ReasonTLSVerify:
		return true
	default:
		return false
	}
}

func (f *Forwarder) hasReplaced(used *Material) bool {
	now, err := f.source.Material()

	return err == nil && now != used
}

// attempt makes one request, short retries included, with the key material of now, which it returns.
func (f *Forwarder) attempt(ctx context.Context, target *url.URL, body []byte, events int) (*Material, error) {
	pool, err := f.acquire()
	if err != nil {
		return nil, failure(target, acquireReason(err), err)
	}
	defer pool.release()

	request, err := f.request(ctx, target, body)
	if err != nil {
		return pool.material, failure(target, ReasonConnection, err)
	}

	answer, err := pool.client.Do(request)
	if err != nil {
		if isTimeout(err) {
			f.leave(pool)
		}

		return pool.material, failure(target, reasonOf(err), withoutURL(err))
	}
	defer answer.Body.Close()

	return pool.material, f.read(target, answer, events)
}

func (f *Forwarder) request(ctx context.Context, target *url.URL, body []byte) (*retryablehttp.Request, error) {
	request, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, target.String(), body)
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller wraps it.
	}

	request.Header.Set("Content-Type", f.version.ContentType())
	request.Header.Set("User-Agent", f.opts.UserAgent)
	// Not sent when empty, and tells net/http that a request which met a connection closed by the server may be sent
	// again at once: an event may arrive twice.
	request.Header["Idempotency-Key"] = []string{}

	return request, nil
}

// read judges an answer. An acknowledgement is final with its status, whatever becomes of its body.
func (f *Forwarder) read(target *url.URL, answer *http.Response, events int) error {
	const firstSuccess, lastSuccess = 200, 299

	if answer.StatusCode >= firstSuccess && answer.StatusCode <= lastSuccess {
		return nil
	}

	kept, readErr := io.ReadAll(io.LimitReader(answer.Body, maxFailures))

	if failures, ok := contract.DecodeFailures(kept, events); ok && f.version.MaxEvents() > 1 {
		return f.eventErrors(target, failures)
	}

	v := judge(answer.StatusCode, answer.Header)
	if answer.StatusCode == http.StatusNotFound && f.version.Numbered() && reasonIn(kept) != ReasonUnknownManager {
		v.reason = ReasonUnknownContract
	}

	asked := parseRetryAfter(answer.Header, time.Now(), f.opts.MaxRetryAfter)
	failed := f.statusError(target, answer.StatusCode, asked, v)
	failed.Body = string(kept[:min(len(kept), maxKept)])
	failed.Err = errors.Join(failed.Err, readErr)

	return failed
}

// reasonIn returns the reason that a listener gives in its answer, "" when it is not a listener's.
func reasonIn(answer []byte) string {
	var body struct {
		Reason string `json:"reason"`
	}

	if json.Unmarshal(answer, &body) != nil {
		return ""
	}

	return body.Reason
}

// eventErrors says of each event of a batch that was not taken what a request with it alone would have led to.
func (f *Forwarder) eventErrors(target *url.URL, failures map[int]contract.Failure) core.EventErrors {
	all := make(core.EventErrors, len(failures))

	for index, failure := range failures {
		asked := min(failure.RetryAfter, f.opts.MaxRetryAfter)
		failed := f.statusError(target, failure.Status, asked, judge(failure.Status, nil))
		failed.Body = failure.Reason[:min(len(failure.Reason), maxKept)]
		all[index] = failed
	}

	return all
}

func (f *Forwarder) statusError(target *url.URL, status int, asked time.Duration, v verdict) *Error {
	return &Error{
		Method: http.MethodPost, URL: target.String(), Status: status, Err: v.cause,
		reason: v.reason, permanent: v.permanent, retryAfter: f.retryAfter(v, asked),
	}
}

func (f *Forwarder) retryAfter(v verdict, asked time.Duration) time.Duration {
	switch {
	case v.permanent:
		return 0
	case v.slow && asked == 0:
		return max(f.opts.RefusedRetryAfter, 0)
	default:
		return asked
	}
}

func failure(target *url.URL, reason string, err error) error {
	return &Error{Method: http.MethodPost, URL: target.String(), Err: err, reason: reason}
}

func acquireReason(err error) string {
	if errors.Is(err, errClosed) {
		return ReasonClosed
	}

	return ReasonMaterial
}

// withoutURL takes off what net/http puts around its errors: ours names the request already.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}

	return err
}
