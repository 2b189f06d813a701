package httpmtls

import (
	"context"
	"errors"
	"io"
	"mime"
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

// send makes one request, and returns nil, [core.EventErrors] or an [*Error].
func (f *Forwarder) send(ctx context.Context, target *url.URL, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()

	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return failure(target, reasonOf(ctx.Err()), ctx.Err())
	}

	// A refusal of key material that was replaced meanwhile says nothing of the new one, which is tried at
	// once: the wait that a refusal asks for is long.
	used, err := f.attempt(ctx, target, m)
	if refusesMaterial(err) && f.hasReplaced(used) {
		_, err = f.attempt(ctx, target, m)
	}

	return f.ofEvent(err, m)
}

// refusesMaterial reports whether another certificate, or another CA bundle, may fare better.
func refusesMaterial(err error) bool {
	failed, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}

	switch failed.reason {
	case contract.ReasonUnauthenticated, contract.ReasonForbidden, contract.ReasonGatewayRefused,
		ReasonTLSRefused, ReasonTLSVerify:
		return true
	default:
		return false
	}
}

func (f *Forwarder) hasReplaced(used *Material) bool {
	now, err := f.source.Material()

	return err == nil && now != used
}

// attempt makes one request, short retries included, with the current key material, which it returns.
func (f *Forwarder) attempt(ctx context.Context, target *url.URL, m *message) (*Material, error) {
	pool, err := f.acquire()
	if err != nil {
		return nil, failure(target, acquireReason(err), err)
	}
	defer pool.release()

	request, err := f.request(ctx, target, m.Body)
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

	return pool.material, f.read(target, answer, m)
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

// read interprets an answer. An acknowledgement is final with its status, whatever becomes of its body.
func (f *Forwarder) read(target *url.URL, answer *http.Response, m *message) error {
	const firstSuccess, lastSuccess = 200, 299

	if answer.StatusCode >= firstSuccess && answer.StatusCode <= lastSuccess {
		return nil
	}

	kept, readErr := io.ReadAll(io.LimitReader(answer.Body, maxFailures))
	decoded := contract.DecodeAnswer(answer.StatusCode, kept, m.elements())
	decoded.RetryAfter = parseRetryAfter(answer.Header, time.Now(), f.opts.MaxRetryAfter)

	if len(decoded.Failed) > 0 {
		return f.eventErrors(target, decoded.Failed, m)
	}

	failed := f.refusal(target, decoded.Refusal, isWebPage(answer.Header))
	failed.Body = string(kept[:min(len(kept), maxKept)])
	failed.Err = errors.Join(failed.Err, readErr)

	return failed
}

// ofEvent names the event of a contract that carries one, when the refusal can only concern it. Deployed
// listeners of contracts v1 and v2 name no index.
func (f *Forwarder) ofEvent(err error, m *message) error {
	failed, ok := errors.AsType[*Error](err)
	if ok && f.version.MaxEvents() == 1 && (failed.permanent || failed.reason == contract.ReasonForbidden) {
		return core.EventErrors{m.index(0): err}
	}

	return err
}

// isWebPage recognizes an answer for people. A listener never writes one.
func isWebPage(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))

	return mediaType == "text/html"
}

// eventErrors translates the refusals of single elements.
func (f *Forwarder) eventErrors(target *url.URL, refused map[int]contract.Refusal, m *message) core.EventErrors {
	all := make(core.EventErrors, len(refused))

	for element, r := range refused {
		r.RetryAfter = min(r.RetryAfter, f.opts.MaxRetryAfter)
		failed := f.refusal(target, r, false)
		failed.Body = r.Reason[:min(len(r.Reason), maxKept)]
		all[m.index(element)] = failed
	}

	return all
}

func (f *Forwarder) refusal(target *url.URL, r contract.Refusal, page bool) *Error {
	meaning := f.version.Interpret(r, page)
	failed := &Error{
		Method: http.MethodPost, URL: target.String(), Status: r.Status, Err: meaning.Cause,
		reason: meaning.Reason, permanent: meaning.Permanent,
	}

	switch {
	case meaning.Permanent:
	case meaning.Slow && r.RetryAfter == 0:
		failed.retryAfter = max(f.opts.RefusedRetryAfter, 0)
	default:
		failed.retryAfter = r.RetryAfter
	}

	return failed
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
