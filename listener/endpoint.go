package listener

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
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
	// heard is whether an event passed the verifier, and its handler was ready: else another replica is the one to hear it.
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
		return refuseAndClose(http.StatusServiceUnavailable, ReasonShuttingDown)
	}

	var err error
	if x.peer, err = x.peers.Peer(x.request); err != nil {
		return x.answerStranger(err)
	}

	x.claim(x.request, x.peer.ID)

	if x.request.Method != http.MethodPost {
		return refuse(http.StatusMethodNotAllowed, ReasonMethod)
	}

	wait, ok := x.shares.enter(x.peer.ID, x.cost(), x.opts.Now())
	if !ok {
		x.slowDown(x.request)

		return answer{status: http.StatusTooManyRequests, reason: ReasonTooFast, retryAfter: max(wait, time.Second)}
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

	*a = answer{status: http.StatusServiceUnavailable, reason: ReasonPanic, err: fmt.Errorf("%w: %v", errPanic, cause)}
	if x.peer.ID == "" {
		a.told = ReasonNotReady
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
		return refuse(http.StatusNotFound, ReasonUnknownManager)
	}

	x.manager, x.handler = manager, handler

	if !isMediaType(x.request.Header.Get("Content-Type"), x.version.ContentType()) {
		return refuse(http.StatusUnsupportedMediaType, ReasonMediaType)
	}

	events, refused := x.read()
	if refused.status != 0 {
		return refused
	}

	return x.deliver(events)
}

// isMediaType compares media types without their parameters (RFC 9110, section 8.3.1).
func isMediaType(header, want string) bool {
	if header == want {
		return true
	}

	have, _, err := mime.ParseMediaType(header)

	return err == nil && have == want
}

// read returns the events of the body, or the answer if there are none.
func (x *exchange) read() ([]core.WatchEvent, answer) {
	if x.request.ContentLength > int64(x.version.MaxBody()) {
		return nil, refuseAndClose(http.StatusRequestEntityTooLarge, ReasonTooLarge)
	}

	buffer := x.bodies.get()
	defer x.bodies.put(buffer)

	size, err := buffer.ReadFrom(io.LimitReader(x.request.Body, int64(x.version.MaxBody())+1))

	switch {
	case size > int64(x.version.MaxBody()):
		return nil, refuseAndClose(http.StatusRequestEntityTooLarge, ReasonTooLarge)
	case err != nil, size < x.request.ContentLength:
		// Not 400, on which the event would be dropped: it was the way that was bad, not the event.
		return nil, answer{status: http.StatusServiceUnavailable, reason: ReasonUnreadable, err: err}
	}

	events, err := x.version.Decode(buffer.Bytes())
	if err != nil {
		return nil, answer{status: http.StatusBadRequest, reason: ReasonMalformed, err: err}
	}

	return events, answer{}
}

// deliver hands the events to the handler, if there is room for it.
func (x *exchange) deliver(events []core.WatchEvent) answer {
	if !x.enter() {
		return x.overhear(events)
	}
	defer x.leave()

	return x.takeAll(events)
}

// takeAll hands every event to the handler, and tells the fleet.
func (x *exchange) takeAll(events []core.WatchEvent) answer {
	received := x.opts.Now()

	ctx, cancel := context.WithTimeout(x.request.Context(), x.opts.HandleTimeout)
	defer cancel()

	failures := make(map[int]answer)

	for i := range events {
		if a := x.take(ctx, &events[i], received); a.reason != "" {
			failures[i] = a
		}
	}

	if x.opts.Fleet != nil && x.heard {
		x.opts.Fleet.Observe(x.peer.ID, x.manager, events, slices.Collect(maps.Keys(failures))...)
	}

	return sumUp(failures, len(events), x.version.Status())
}

// take verifies one event and hands it to the handler, to which a heartbeat says nothing. A panic costs that event only: the others
// of its batch would otherwise come again with it for ever.
func (x *exchange) take(ctx context.Context, event *core.WatchEvent, received time.Time) (a answer) {
	defer x.recover(&a)

	if err := x.verify(ctx, event); err != nil {
		return answerRefused(err)
	}

	err := x.handle(ctx, event, received)
	x.heard = x.heard || !errors.Is(err, core.ErrNotReady)

	if err != nil {
		return answerNotTaken(err)
	}

	return answer{}
}

func (x *exchange) handle(ctx context.Context, event *core.WatchEvent, received time.Time) error {
	if event.Kind == core.KindHeartbeat {
		return ready(x.handler)
	}

	return x.handler.Handle(ctx, core.Delivery{Runtime: x.peer.ID, Manager: x.manager, Event: *event, Received: received})
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

// verify compares what the event claims with the certificate, then asks the verifier.
func (x *exchange) verify(ctx context.Context, event *core.WatchEvent) error {
	if event.Source != "" && event.Source != x.peer.ID {
		return Forbidden(ReasonSourceMismatch, "the event claims to come from runtime %.253q", event.Source)
	}

	return x.verifier.Verify(ctx, x.peer, event)
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
	started, a := l.opts.Now(), refuse(http.StatusNotFound, ReasonNotFound)
	a.write(w)
	l.answered(&exchange{request: r}, &a, started)
}

// isClean reports whether a mux would take the path as it is: it redirects others, which a sender of events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()

	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}
