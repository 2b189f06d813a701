package httpmtls

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// sendInSlot sends a request when the forwarder has a slot for it.
func (f *Forwarder) sendInSlot(ctx context.Context, target *url.URL, m *message) error {
	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()

	select {
	// A request also waits for its slot within its timeout.
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return failure(target, reasonOf(ctx.Err()), ctx.Err())
	}

	return f.ofEvent(f.attemptRequest(ctx, target, m), m)
}

// attemptRequest sends a request, with its short retries, and reads the answer. It gives up
// connections that may be dead.
func (f *Forwarder) attemptRequest(ctx context.Context, target *url.URL, m *message) error {
	pool, err := f.acquirePool()
	switch {
	case errors.Is(err, errClosed):
		return failure(target, ReasonClosed, err)
	case err != nil:
		return failure(target, ReasonMaterial, err)
	}
	defer pool.endRequest()

	request, err := newRequest(ctx, target, m.Body)
	if err != nil {
		return failure(target, ReasonConnection, err)
	}

	answer, err := pool.client.Do(request)
	if err != nil {
		// The connection may be dead.
		if isTimeout(err) {
			f.leavePool(pool)
		}
		return failure(target, reasonOf(err), reasons.Plain(withoutURL(err)))
	}
	defer answer.Body.Close()

	err = f.readAnswer(target, answer, m)
	// The name may lead to another gateway by now, and an open connection does not follow it.
	if pool.noteAnswer(err) > f.opts.leaveAfter {
		f.leavePool(pool)
	}
	return err
}

// newRequest returns errors that the caller wraps.
func newRequest(ctx context.Context, target *url.URL, body []byte) (*retryablehttp.Request, error) {
	bare := http.Request{Method: http.MethodPost, URL: target, Host: target.Host, Header: http.Header{}}
	request, err := retryablehttp.FromRequest(bare.WithContext(ctx))
	if err != nil {
		return nil, err
	}

	if err := request.SetBody(body); err != nil {
		return nil, err
	}
	return request, nil
}

// withoutURL removes the wrapper of net/http, because a [*requestError] has the URL itself.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
