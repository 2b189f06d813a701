// Package listenertest sends batches to a listener in the same process, without sockets and
// certificates. The verifier, the handlers and the fleet of the listener are the same as in
// production.
//
// Create the listener with [Peers] and send with [Forwarder]. The listener need not be started. An
// outbox with such a forwarder plays the agent of a runtime.
package listenertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

type peerKey struct{}

var errNoPeer = errors.New("the request does not come from a forwarder of listenertest")

// Peers identifies the sender of a request as the peer of its [Forwarder]. All other requests have
// no identity.
func Peers() listener.Peers {
	return listener.PeersFunc(func(r *http.Request) (core.Peer, error) {
		if peer, ok := r.Context().Value(peerKey{}).(core.Peer); ok {
			return peer, nil
		}
		return core.Peer{}, listener.Unauthenticated(reasons.NoIdentity, errNoPeer)
	})
}

// Forwarder returns a forwarder of a runtime to a handler, such as a listener with [Peers]. It
// speaks contract v3 and adds the source and the IDs that a batch lacks. Forward returns when the
// handler has answered.
func Forwarder(to http.Handler, peer core.Peer) core.Forwarder { return &forwarder{to, peer} }

type forwarder struct {
	to   http.Handler
	peer core.Peer
}

func (f *forwarder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.IsEmpty() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := core.ParseManager(string(manager)); err != nil {
		return err
	}

	batch = contract.Claim(batch, f.peer.ID)
	request, err := contract.V3.Encode(&batch)
	if err != nil {
		return err
	}
	if request.Body == nil {
		return request.Failed
	}
	return f.sendRequest(ctx, manager, &request, len(batch.Events))
}

// sendRequest returns the errors of the events that failed, sent or not. An answer to the whole
// request is the error.
func (f *forwarder) sendRequest(ctx context.Context, to core.Manager, request *contract.Request, events int) error {
	answer := httptest.NewRecorder()
	body := bytes.NewReader(request.Body)
	of := context.WithValue(ctx, peerKey{}, f.peer)
	r := httptest.NewRequestWithContext(of, http.MethodPost, contract.V3.Path(to), body)
	r.Header.Set("Content-Type", contract.V3.ContentType())
	f.to.ServeHTTP(answer, r)
	if err := ctx.Err(); err != nil {
		return err
	}
	if answer.Code == contract.V3.Status() {
		return request.Result(nil)
	}

	decoded := contract.DecodeAnswer(answer.Code, answer.Body.Bytes(), request.Elements())
	seconds, _ := strconv.Atoi(answer.Header().Get("Retry-After")) // A listener sends seconds.
	decoded.RetryAfter = time.Duration(seconds) * time.Second
	if len(decoded.Failed) == 0 {
		return refused(decoded.Refusal)
	}

	failed := make(core.EventErrors, len(decoded.Failed))
	for element, r := range decoded.Failed {
		failed[request.Index(element, events)] = refused(r)
	}

	return request.Result(failed)
}

type refusal struct {
	contract.Refusal
	contract.Meaning
}

func refused(r contract.Refusal) error { return &refusal{r, contract.V3.Interpret(r, false)} }

func (r *refusal) Error() string {
	return fmt.Sprintf("the listener answers %d (%s)", r.Status, cmp.Or(r.Refusal.Reason, r.Meaning.Reason))
}

func (r *refusal) Unwrap() error             { return r.Cause }
func (r *refusal) Reason() string            { return string(r.Meaning.Reason) }
func (r *refusal) Retryable() bool           { return !r.Permanent }
func (r *refusal) RetryAfter() time.Duration { return r.Refusal.RetryAfter }
