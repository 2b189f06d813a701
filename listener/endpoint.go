package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// endpoint answers the requests of one contract.
type endpoint struct {
	*Listener

	version contract.Version
	bodies  *pool
}

// ServeHTTP implements [http.Handler].
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := e.opts.Now()
	x := exchange{endpoint: e, request: r}
	a := x.answer()
	a.write(w)
	e.answered(&x, &a, started)
}

// answered tells the hook and, if the event was not taken, the log.
func (l *Listener) answered(x *exchange, a *answer, started time.Time) {
	took := l.opts.Now().Sub(started)

	if l.opts.Hooks.Answered != nil {
		l.opts.Hooks.Answered(x.contract(), x.manager, a.status, a.reason, took)
	}

	if a.reason == "" || !l.opts.Logger.Enabled(x.request.Context(), slog.LevelDebug) {
		return
	}

	l.opts.Logger.LogAttrs(x.request.Context(), slog.LevelDebug, "request refused",
		slog.String("contract", x.contract()), slog.String("manager", string(x.manager)),
		slog.String("runtime", string(x.peer.ID)), slog.String("remote", x.request.RemoteAddr),
		slog.Int("status", a.status), slog.String("reason", a.reason), slog.Duration("took", took), slog.Any("error", a.err))
}

// exchange is one request on its way to an answer. What is learned on the way is kept for the hook and the log.
type exchange struct {
	*endpoint

	request *http.Request
	peer    core.Peer
	// manager is empty until it is known to be one of ours.
	manager core.Manager
	handler core.Handler
	// heard is whether an event or the heartbeat passed the verifier, and the handler was ready.
	heard bool
}

func (x *exchange) contract() string {
	if x.endpoint == nil {
		return ""
	}

	return string(x.version)
}

// answer finds out who asks before anything else, so that a stranger learns nothing from the answer.
func (x *exchange) answer() (a answer) {
	defer x.recover(&a)

	if x.state.Load() >= stopping {
		return refuseAndClose(http.StatusServiceUnavailable, contract.ReasonShuttingDown)
	}

	var err error
	if x.peer, err = x.peers.Peer(x.request); err != nil {
		return x.answerStranger(err)
	}

	x.claim(x.request, x.peer.ID)

	if x.request.Method != http.MethodPost {
		return refuse(http.StatusMethodNotAllowed, contract.ReasonMethod)
	}

	wait, ok := x.shares.enter(x.peer.ID, x.cost(), x.opts.Now())
	if !ok {
		x.slowDown(x.request)

		return answer{status: http.StatusTooManyRequests, reason: contract.ReasonTooFast, retryAfter: max(wait, time.Second)}
	}
	defer func() { x.shares.leave(x.peer.ID, x.opts.Now()) }()

	return x.receive()
}

// recover answers a panic so that the sender tries again: the next event, or the next version, may get through.
func (x *exchange) recover(a *answer) {
	cause := recover()
	if cause == nil {
		return
	}

	*a = answer{status: http.StatusServiceUnavailable, reason: contract.ReasonPanic, err: fmt.Errorf("%w: %v", errPanic, cause)}
	if x.peer.ID == "" {
		a.told = contract.ReasonNotReady
	}

	x.opts.Logger.LogAttrs(x.request.Context(), slog.LevelError, "panic while a request was answered",
		slog.Any("error", a.err), slog.String("stack", string(debug.Stack())))
}

var errPanic = errors.New("panic")

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
	if x.request.ContentLength > int64(x.version.MaxBody()) {
		return core.Batch{}, refuseAndClose(http.StatusRequestEntityTooLarge, contract.ReasonTooLarge)
	}

	buffer := x.bodies.get()
	defer x.bodies.put(buffer)

	size, err := buffer.ReadFrom(io.LimitReader(x.request.Body, int64(x.version.MaxBody())+1))

	switch {
	case size > int64(x.version.MaxBody()):
		return core.Batch{}, refuseAndClose(http.StatusRequestEntityTooLarge, contract.ReasonTooLarge)
	case err != nil, size < x.request.ContentLength:
		// Not 400, on which the sender drops the events: the path failed, not the events.
		return core.Batch{}, answer{status: http.StatusServiceUnavailable, reason: contract.ReasonUnreadable, err: err}
	}

	batch, err := x.version.Decode(buffer.Bytes())
	if err != nil {
		return core.Batch{}, answer{status: http.StatusBadRequest, reason: contract.ReasonMalformed, err: err}
	}

	return batch, answer{}
}

// deliver checks the claim of the batch, and hands its events to the handler if there is a slot.
func (x *exchange) deliver(batch *core.Batch) answer {
	if batch.Source != "" && batch.Source != x.peer.ID {
		return answerRefused(Forbidden(ReasonSourceMismatch, "the batch claims to come from runtime %.253q", batch.Source))
	}

	if !x.enter() {
		return x.observeOnly(batch)
	}
	defer x.leave()

	return x.takeAll(batch)
}

// takeAll hands every event to the handler, and the batch to the fleet.
func (x *exchange) takeAll(batch *core.Batch) answer {
	received := x.opts.Now()

	ctx, cancel := context.WithTimeout(x.request.Context(), x.opts.HandleTimeout)
	defer cancel()

	failures := make(map[int]answer)

	for i := range batch.Events {
		if a := x.take(ctx, &batch.Events[i].WatchEvent, received); a.reason != "" {
			failures[i] = a
		}
	}

	if batch.Heartbeat != nil {
		if a := x.takeHeartbeat(ctx); a.reason != "" {
			failures[len(batch.Events)] = a
		}
	}

	x.judgeSender(ctx, failures, batch)
	x.observe(batch, failures)

	return x.summarize(failures)
}

// observe hands a batch to the fleet if some part of it was verified, and its handler was ready. Otherwise
// another replica is the one to observe it.
func (x *exchange) observe(batch *core.Batch, failures map[int]answer) {
	if x.opts.Fleet == nil || !x.heard {
		return
	}

	refused := make(core.EventErrors, len(failures))
	for i, a := range failures {
		refused[i] = cmp.Or(a.err, errRefused)
	}

	x.opts.Fleet.Observe(x.peer, x.manager, *batch, refused)
}

var errRefused = errors.New("refused")

// judgeSender makes failures that all events share those of the sender, when the sender may not speak for
// its runtime at all: a resync without owner is refused, too.
func (x *exchange) judgeSender(ctx context.Context, failures map[int]answer, batch *core.Batch) {
	if x.version.NeedsOwner() || len(failures) == 0 || len(failures) < elements(batch) {
		return
	}

	err := x.verifier.Verify(ctx, x.peer, &core.WatchEvent{Resync: true})
	if err == nil {
		return
	}

	for i := range failures {
		a := answerRefused(err)
		a.whole = true
		failures[i] = a
	}
}

func elements(batch *core.Batch) int {
	if batch.Heartbeat == nil {
		return len(batch.Events)
	}

	return len(batch.Events) + 1
}

// take verifies one event and hands it to the handler. A panic costs that event only: the others of its
// batch would otherwise come again with it for ever.
func (x *exchange) take(ctx context.Context, event *core.WatchEvent, received time.Time) (a answer) {
	defer x.recover(&a)

	if err := x.verifier.Verify(ctx, x.peer, event); err != nil {
		return answerRefused(err)
	}

	err := x.handler.Handle(ctx, core.Delivery{Runtime: x.peer.ID, Manager: x.manager, Event: *event, Received: received})
	x.heard = x.heard || !errors.Is(err, core.ErrNotReady)

	if err != nil {
		return answerNotTaken(err)
	}

	return answer{}
}

// takeHeartbeat verifies that the sender may speak for its runtime. No handler gets a heartbeat.
func (x *exchange) takeHeartbeat(ctx context.Context) (a answer) {
	defer x.recover(&a)

	if err := x.verifier.Verify(ctx, x.peer, &core.WatchEvent{Resync: true}); err != nil {
		return answerRefused(err)
	}

	if err := ready(x.handler); err != nil {
		return answerNotTaken(err)
	}

	x.heard = true

	return answer{}
}

// costUnit is how many bytes of a body one token pays for, beside the one for the request.
const costUnit = 16 << 10

// cost returns how many tokens the request takes. A body whose size is not announced costs as much as the largest.
func (x *exchange) cost() float64 {
	size := int64(x.version.MaxBody())
	if announced := x.request.ContentLength; announced >= 0 {
		size = min(size, announced)
	}

	return 1 + float64(size)/costUnit
}

// wildcard is the name of the path segment that names the manager.
const wildcard = "manager"

// newMux routes each contract to its endpoint, and the rest to nowhere.
func (l *Listener) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/", l.notFound)

	for _, version := range contract.Versions() {
		mux.Handle(pattern(version), &endpoint{
			Listener: l,
			version:  version,
			bodies:   newPool(),
		})
	}

	return mux
}

// pattern returns the path of a contract with a wildcard for the manager.
func pattern(version contract.Version) string {
	return strings.Replace(version.Path(wildcard), "/"+wildcard+"/", "/{"+wildcard+"}/", 1)
}

func (l *Listener) notFound(w http.ResponseWriter, r *http.Request) {
	started, a := l.opts.Now(), refuse(http.StatusNotFound, contract.ReasonNotFound)
	a.write(w)
	l.answered(&exchange{request: r}, &a, started)
}

// isClean reports whether a mux would take the path as it is: it redirects others, which a sender of events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()

	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}
