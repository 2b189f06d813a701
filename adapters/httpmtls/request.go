package httpmtls

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxKept is what an error keeps of an answer.
const maxKept = 1 << 10

// send sends one batch in one request, and returns nil or an [*Error].
func (f *Forwarder) send(ctx context.Context, target *url.URL, batch []core.WatchEvent) error {
	body, err := f.version.Encode(batch)
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

	return f.post(ctx, target, body)
}

func (f *Forwarder) post(ctx context.Context, target *url.URL, body []byte) error {
	pool, err := f.acquire()
	if err != nil {
		return failure(target, acquireReason(err), err)
	}
	defer pool.release()

	request, err := f.request(ctx, target, body)
	if err != nil {
		return failure(target, ReasonConnection, err)
	}

	answer, err := pool.client.Do(request)
	if err != nil {
		return failure(target, reasonOf(err), withoutURL(err))
	}
	defer answer.Body.Close()

	return f.read(target, answer)
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
func (f *Forwarder) read(target *url.URL, answer *http.Response) error {
	const firstSuccess, lastSuccess = 200, 299

	if answer.StatusCode >= firstSuccess && answer.StatusCode <= lastSuccess {
		return nil
	}

	kept, readErr := io.ReadAll(io.LimitReader(answer.Body, maxKept))
	verdict := judge(answer.StatusCode, answer.Header)

	return &Error{
		Method: http.MethodPost, URL: target.String(), Status: answer.StatusCode, Body: string(kept),
		Err:        errors.Join(verdict.cause, readErr),
		reason:     verdict.reason,
		permanent:  verdict.permanent,
		retryAfter: f.retryAfter(verdict, answer.Header),
	}
}

func (f *Forwarder) retryAfter(v verdict, header http.Header) time.Duration {
	asked := parseRetryAfter(header, time.Now(), f.opts.MaxRetryAfter)

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
