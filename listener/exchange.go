package listener

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// exchange is one request until its answer. It passes answer, route, receive and read here, and
// deliver in deliver.go.
type exchange struct {
	*endpoint

	request  *http.Request
	verifier core.Verifier
	// peer is empty until the sender is identified.
	peer core.Peer
	// manager is empty until it is known to be one of this listener's.
	manager core.Manager
	handler core.Handler
	// verified means that the verifier let some element of the batch pass, or the sender as a
	// whole.
	verified bool
	// speaks means that the verifier let the sender speak for its runtime as a whole.
	speaks bool
	// notReady means that this replica takes no events.
	notReady bool
}

// answer identifies the sender and charges it before anything else, so that a stranger learns
// nothing.
func (x *exchange) answer() (a answer) {
	defer x.recover(&a)

	if x.state.Load() >= stopping {
		return refuseAndClose(http.StatusServiceUnavailable, contract.ReasonShuttingDown)
	}

	peer, err := x.peers.Peer(x.request)
	if err != nil {
		return x.answerStranger(err)
	}

	x.peer = peer
	x.claim(x.request, peer.ID)

	if wait, ok := x.shares.enter(x.account(), x.cost(), x.opts.Now()); !ok {
		return x.tooFast(wait)
	}
	defer func() { x.shares.leave(x.account(), x.opts.Now()) }()

	return x.route()
}

// answerStranger answers a sender that is not identified. It loses its connection, unless that is a
// gateway's. Each attempt then costs it a handshake, in which a runtime shows a new certificate.
func (x *exchange) answerStranger(err error) answer {
	a := refuseUnverified(err)
	if wait, ok := x.shares.charge(x.account(), 1, x.opts.Now()); !ok {
		late := x.tooFast(wait)
		late.closes = a.reason == reasonUntrustedProxy
		return late
	}
	a.public = contract.ReasonNotReady
	if a.status != http.StatusServiceUnavailable {
		a.status, a.public = http.StatusUnauthorized, contract.ReasonUnauthenticated
		a.closes = x.ownsConnection() || a.reason == reasonUntrustedProxy
	}
	return a
}

// recover answers a panic with 503: the same events may be taken later.
func (x *exchange) recover(a *answer) {
	cause := recover()
	if cause == nil {
		return
	}
	err := fmt.Errorf("%w: %v", errPanic, cause)
	*a = answer{status: http.StatusServiceUnavailable, reason: contract.ReasonPanic, err: err}
	if x.peer.ID == "" {
		a.public = contract.ReasonNotReady
	}
	x.opts.Logger.LogAttrs(x.request.Context(), slog.LevelError, "panic while a request was answered",
		slog.Any("error", err), slog.String("stack", string(debug.Stack())))
}

var errPanic = errors.New("panic")

// route refuses requests that are not for a contract.
func (x *exchange) route() answer {
	switch {
	case x.version == "":
		return refuse(http.StatusNotFound, contract.ReasonNotFound)
	case x.request.Method != http.MethodPost:
		return refuse(http.StatusMethodNotAllowed, contract.ReasonMethod)
	default:
		return x.receive()
	}
}

// receive reads the events of a known peer and delivers them.
func (x *exchange) receive() answer {
	manager := core.Manager(x.request.PathValue(wildcard))

	handler, known := x.handlers[manager]
	if !known {
		return refuse(http.StatusNotFound, contract.ReasonUnknownManager)
	}

	x.manager, x.handler = manager, handler

	if !isMediaType(x.request.Header.Get("Content-Type"), x.version.ContentType()) {
		return refuse(http.StatusUnsupportedMediaType, contract.ReasonMediaType)
	}

	if x.mustRelay() {
		return x.relayToLeader()
	}

	batch, refused := x.read()
	if refused.status != 0 {
		return refused
	}

	return x.deliver(&batch)
}

// isMediaType compares media types without their parameters (RFC 9110, section 8.3.1).
func isMediaType(header, want string) bool {
	if header == want {
		return true
	}
	have, _, err := mime.ParseMediaType(header)
	return err == nil && have == want
}

// read returns the batch of the body, or the answer if there is none.
func (x *exchange) read() (core.Batch, answer) {
	buffer := x.bodies.get()
	defer x.bodies.put(buffer)

	if refused := x.readBody(buffer); refused.status != 0 {
		return core.Batch{}, refused
	}

	batch, err := x.version.Decode(buffer.Bytes())
	if err != nil {
		return core.Batch{}, answer{status: http.StatusBadRequest, reason: contract.ReasonMalformed, err: err}
	}

	return batch, answer{}
}

// readBody reads the whole body into buffer, or returns the answer if it cannot.
func (x *exchange) readBody(buffer *bytes.Buffer) answer {
	limit := int64(x.version.MaxBody())
	if x.request.ContentLength > limit {
		return refuseAndClose(http.StatusRequestEntityTooLarge, contract.ReasonTooLarge)
	}

	size, err := buffer.ReadFrom(io.LimitReader(x.request.Body, limit+1))

	switch {
	case size > limit:
		return refuseAndClose(http.StatusRequestEntityTooLarge, contract.ReasonTooLarge)
	case err != nil, size < x.request.ContentLength:
		// Not 400, on which the sender drops the events: the path failed, not the events.
		return answer{status: http.StatusServiceUnavailable, reason: contract.ReasonUnreadable, err: err}
	default:
		return answer{}
	}
}

// report calls the hook and logs a refusal.
func (x *exchange) report(a *answer, took time.Duration) {
	if x.opts.Hooks.Answered != nil {
		x.opts.Hooks.Answered(string(x.version), x.manager, a.status, a.reason, took)
	}
	if a.reason == "" || !x.opts.Logger.Enabled(x.request.Context(), slog.LevelDebug) {
		return
	}
	x.opts.Logger.LogAttrs(x.request.Context(), slog.LevelDebug, "request refused",
		slog.String("contract", string(x.version)), slog.String("manager", string(x.manager)),
		slog.String("runtime", string(x.peer.ID)), slog.String("remote", x.request.RemoteAddr),
		slog.Int("status", a.status), slog.String("reason", a.reason),
		slog.Duration("took", took), slog.Any("error", a.err))
}
