package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Handler answers the AdmissionReviews of an API server at POST /validate/<manager>, always with
// allowed: true.
//
// A review is answered 200 with an AdmissionReview of the same uid, whose response.status.message begins
// with the [Decision]. Any other request gets a metav1.Status: 400 for a body that is no
// admission.k8s.io/v1 review, 404 for an unknown path or manager, 405, 413, or 415. When a review cannot
// be read or decided, a resync of the manager stands in for the change; it is accepted after the answer.
//
// A Handler is safe for concurrent use and starts no goroutine. The server around it bounds the time and
// the number of requests.
type Handler struct {
	acceptor core.Acceptor
	opts     Options
	log      *slog.Logger
	mux      *http.ServeMux
	notFound http.HandlerFunc
	bodies   *bodies

	ownerWarning, refusalWarning throttle
}

var _ http.Handler = (*Handler)(nil)

// New returns a handler that hands the events it makes to acceptor. It fails on a nil acceptor and on options that can
// not work, and names all that is wrong with them.
func New(acceptor core.Acceptor, opts Options) (*Handler, error) {
	if acceptor == nil {
		return nil, errors.New("admission handler: want an acceptor, have nil")
	}

	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("admission handler: %w", err)
	}

	h := &Handler{
		acceptor: acceptor, opts: opts, log: opts.Logger, mux: http.NewServeMux(),
		bodies: newBodies(opts.MaxBody, opts.MaxBodies),
	}
	h.notFound = h.serve(refusePath)

	h.mux.HandleFunc("POST "+pathPrefix+"{manager}", h.serve(h.review))
	h.mux.HandleFunc(pathPrefix+"{manager}", h.serve(refuseMethod))
	h.mux.HandleFunc("/", h.notFound)

	return h, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A mux redirects from these to another path, which would be an answer that no API server expects.
	if !isClean(r.URL) {
		h.notFound(w, r)

		return
	}

	h.mux.ServeHTTP(w, r)
}

func isClean(u *url.URL) bool {
	escaped := u.EscapedPath()

	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped
}

// route turns a request into a reply. It may use w for the limits of the body only.
type route func(w http.ResponseWriter, r *http.Request, started time.Time) reply

// serve writes the reply of a route, whatever panics below it.
func (h *Handler) serve(route route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started := h.opts.Now()
		answer := reply{refusal: internalError()}

		defer h.guard(PanicInHooks, func() { h.report(r.Context(), &answer, started) })

		h.guard(PanicInHooks, func() { h.opts.Hooks.InFlight(1) })
		h.guard(PanicInRequest, func() { answer = route(w, r, started) })
		answer.writeTo(w)

		if answer.missed {
			h.guard(PanicInAcceptor, func() { h.standIn(w, answer.manager) })
		}
	}
}

func refusePath(http.ResponseWriter, *http.Request, time.Time) reply {
	return reply{refusal: &refusal{http.StatusNotFound, RefusedPath, "want POST " + pathPrefix + "{manager}"}}
}

func refuseMethod(_ http.ResponseWriter, r *http.Request, _ time.Time) reply {
	return reply{refusal: &refusal{
		http.StatusMethodNotAllowed, RefusedMethod, fmt.Sprintf("want POST, have %.20q", r.Method),
	}}
}

// review answers an AdmissionReview.
func (h *Handler) review(w http.ResponseWriter, r *http.Request, started time.Time) reply {
	manager, refused := h.managerOf(r)
	if refused == nil {
		refused = checkMediaType(r.Header)
	}

	if refused != nil {
		return reply{refusal: refused}
	}

	answer := reply{manager: manager, missed: true, refusal: internalError()}
	h.guard(PanicInRequest, func() { answer = h.reviewFor(manager, w, r, started) })

	return answer
}

func (h *Handler) reviewFor(manager core.Manager, w http.ResponseWriter, r *http.Request, started time.Time) reply {
	body, err := h.bodies.read(w, r)
	defer body.release()

	if err != nil {
		return h.unread(w, r, manager, body, err)
	}

	q, err := readReview(body.data)
	if err != nil {
		return reply{manager: manager, missed: true, refusal: badReview(err)}
	}

	answer := reply{manager: manager, uid: q.uid, decision: Failed}
	h.guard(PanicInAcceptor, func() { answer.decision = h.decide(r.Context(), manager, q, started) })
	answer.missed = answer.decision == Failed

	return answer
}

// unread answers a review that was not read. A review that only lacks room is allowed: an API server that
// goes on without an answer reports that in its metrics and logs, for every write.
func (h *Handler) unread(w http.ResponseWriter, r *http.Request, manager core.Manager, body *body, cause error) reply {
	if errors.Is(cause, errNoRoom) && r.Context().Err() == nil {
		if uid := body.skim(http.MaxBytesReader(w, r.Body, h.opts.MaxBody)); uid != "" {
			return reply{manager: manager, uid: uid, decision: Unread, missed: true}
		}
	}

	return reply{manager: manager, missed: true, refusal: badBody(cause)}
}

// standIn hands over a resync for a change that was not seen, after the answer is on its way: the API
// server commits the change then.
func (h *Handler) standIn(w http.ResponseWriter, manager core.Manager) {
	_ = http.NewResponseController(w).Flush() // The answer of a writer that cannot flush is a moment later.

	h.acceptor.Accept(manager, core.WatchEvent{Resync: true, Time: h.opts.Now()})
}

// guard calls f and catches its panic, which must not cost the API server its answer.
func (h *Handler) guard(place string, f func()) {
	defer func() {
		if cause := recover(); cause != nil {
			h.panicked(place, cause)
		}
	}()

	f()
}

func (h *Handler) panicked(place string, cause any) {
	// The hook, or the logger, may be what panicked.
	defer func() { _ = recover() }()

	h.log.Error("caught a panic", "place", place, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	h.opts.Hooks.Panicked(place)
}

// report tells hooks and log what was answered.
func (h *Handler) report(ctx context.Context, answer *reply, started time.Time) {
	took := h.opts.Now().Sub(started)

	h.opts.Hooks.InFlight(-1)

	if answer.refusal != nil {
		h.reportRefusal(ctx, answer.refusal, took)

		return
	}

	h.opts.Hooks.Reviewed(answer.manager, string(answer.decision), took)

	if h.log.Enabled(ctx, slog.LevelDebug) {
		h.log.LogAttrs(ctx, slog.LevelDebug, "reviewed",
			slog.String("manager", string(answer.manager)), slog.String("decision", string(answer.decision)),
			slog.String("uid", answer.uid), slog.Duration("took", took))
	}
}

func (h *Handler) reportRefusal(ctx context.Context, refused *refusal, took time.Duration) {
	h.opts.Hooks.Refused(refused.code, refused.reason, took)

	if suppressed, ok := h.refusalWarning.pass(h.opts.Now()); ok {
		h.log.LogAttrs(ctx, slog.LevelWarn, "refused a request that is no review",
			slog.Int("status", refused.code), slog.String("reason", refused.reason),
			slog.String("message", refused.message), slog.Int64("suppressed", suppressed))
	}
}
