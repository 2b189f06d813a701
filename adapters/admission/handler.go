package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Where a panic was caught, as [Hooks].Panicked gets it.
const (
	// PanicInFilter means a filter. The change was taken as one that matters.
	PanicInFilter = "filter"
	// PanicInAcceptor means the acceptor, or a hook or logger that was called before it. The review was answered.
	PanicInAcceptor = "acceptor"
	// PanicInRequest means the reading of a request, which was then answered 500.
	PanicInRequest = "request"
	// PanicInHooks means a hook or logger that was called after the answer.
	PanicInHooks = "hooks"
)

// Handler answers the AdmissionReviews of an API server at POST /validate/<manager>, always with allowed: true.
//
// A review is answered 200 and an AdmissionReview with the same uid, whose response.status.message begins with the
// [Decision]. Any other request gets a metav1.Status: 400 for what is no admission.k8s.io/v1 review or no manager, 404 for an unknown
// path or manager, 405, 413 for a body beyond the limit, 415 for anything but application/json. A change whose body is not read, because it is too large, breaks off, or
// finds no room beside others, goes by unseen: the acceptor gets a resync of the manager for it. It is safe for concurrent use, starts no goroutine, and bounds neither the time nor the number of requests: the server around
// it does.
type Handler struct {
	acceptor core.Acceptor
	opts     Options
	log      *slog.Logger
	mux      *http.ServeMux
	notFound http.HandlerFunc
	bodies   bodies

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

	h := &Handler{acceptor: acceptor, opts: opts, log: opts.Logger, mux: http.NewServeMux()}
	h.bodies.limit, h.bodies.room.free = opts.MaxBody, max(opts.MaxBodies, opts.MaxBody)
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
		answer := reply{refusal: &refusal{http.StatusInternalServerError, RefusedInternal, "internal error"}}

		defer h.guard(PanicInHooks, func() { h.report(r.Context(), &answer, started) })

		h.guard(PanicInRequest, func() {
			h.opts.Hooks.InFlight(1)
			answer = route(w, r, started)
		})
		answer.writeTo(w)
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

	body, err := h.bodies.read(w, r)
	if err != nil {
		return h.unread(w, r, manager, err, started)
	}
	defer h.bodies.giveBack(body)

	q, err := readReview(body.Bytes())
	if err != nil {
		return reply{refusal: badReview(err)}
	}

	answer := reply{manager: manager, uid: q.uid, decision: Failed}
	h.guard(PanicInAcceptor, func() { answer.decision = h.decide(r.Context(), manager, q, started) })

	return answer
}

// unread lets a resync stand in for a change that goes by unseen. If all that is wrong with the review is that there is no room for it, it is
// allowed without being read: an API server that has to go on without an answer says so in its metrics and logs, of every write.
func (h *Handler) unread(w http.ResponseWriter, r *http.Request, manager core.Manager, cause error, now time.Time) reply {
	decision := Failed

	h.guard(PanicInAcceptor, func() {
		if h.acceptor.Accept(manager, core.WatchEvent{Resync: true, Time: now}) != "" {
			decision = Unread
		}
	})

	if errors.Is(cause, errNoRoom) && r.Context().Err() == nil {
		if uid := skim(http.MaxBytesReader(w, r.Body, h.opts.MaxBody)); uid != "" {
			return reply{manager: manager, uid: uid, decision: decision}
		}
	}

	return reply{refusal: badBody(cause)}
}

func (h *Handler) managerOf(r *http.Request) (core.Manager, *refusal) {
	manager, err := core.ParseManager(r.PathValue("manager"))
	if err != nil {
		return "", &refusal{http.StatusBadRequest, RefusedManager, err.Error()}
	}

	if len(h.opts.Managers) > 0 && !slices.Contains(h.opts.Managers, manager) {
		return "", &refusal{http.StatusNotFound, RefusedManager, fmt.Sprintf("no watch of manager %q here", manager)}
	}

	return manager, nil
}

func checkMediaType(header http.Header) *refusal {
	const want = "application/json"

	if have := header.Get("Content-Type"); have != want {
		if mediaType, _, err := mime.ParseMediaType(have); err != nil || mediaType != want {
			message := fmt.Sprintf("want Content-Type %s, have %.80q", want, have)

			return &refusal{http.StatusUnsupportedMediaType, RefusedMediaType, message}
		}
	}

	if have := header.Get("Content-Encoding"); have != "" && have != "identity" {
		message := fmt.Sprintf("want no Content-Encoding, have %.80q", have)

		return &refusal{http.StatusUnsupportedMediaType, RefusedMediaType, message}
	}

	return nil
}

func badBody(err error) *refusal {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		message := fmt.Sprintf("want a body of at most %d bytes", tooLarge.Limit)

		return &refusal{http.StatusRequestEntityTooLarge, RefusedSize, message}
	}

	if errors.Is(err, errNoRoom) {
		// Without Retry-After: an API server would wait as it is told, and the write with it.
		return &refusal{http.StatusServiceUnavailable, RefusedBusy, err.Error()}
	}

	return &refusal{http.StatusBadRequest, RefusedBody, "the body did not arrive completely"}
}

// decide makes an event of a review that matters, and hands it over.
func (h *Handler) decide(ctx context.Context, manager core.Manager, q *request, now time.Time) Decision {
	c := q.change()

	if c.DryRun {
		return DryRun
	}

	if !h.matters(manager, c) {
		return filteredOut(c)
	}

	event, err := c.Event(now)
	if err != nil {
		return NoName
	}

	event.Owner = h.ownerOf(ctx, manager, c, &event)
	if event.Owner == (types.NamespacedName{}) && h.opts.RequireOwner {
		return NoOwner
	}

	return decisionOf(h.acceptor.Accept(manager, event))
}

// matters asks the filter. An event too many is one harmless look; one too few would be lost.
func (h *Handler) matters(manager core.Manager, c *core.Change) bool {
	filter := h.opts.Filter
	if own, ok := h.opts.Filters[manager]; ok {
		filter = own
	}

	matters := true
	h.guard(PanicInFilter, func() { matters = filter(c) })

	return matters
}

// ownerOf returns the zero value when the object names no owner, and tells about it when it should have.
func (h *Handler) ownerOf(
	ctx context.Context, manager core.Manager, c *core.Change, event *core.WatchEvent,
) types.NamespacedName {
	owner, err := c.Owner()
	if err == nil && (owner != types.NamespacedName{} || !h.opts.RequireOwner) {
		return owner
	}

	problem := OwnerMalformed
	if err == nil {
		problem = OwnerMissing
	}

	h.opts.Hooks.OwnerProblem(manager, problem)

	if suppressed, ok := h.ownerWarning.pass(h.opts.Now()); ok {
		h.log.LogAttrs(ctx, slog.LevelWarn, "object names no valid owner",
			slog.String("manager", string(manager)), slog.String("problem", problem), slog.Any("error", err),
			slog.String("kind", event.WatchedGVK.String()), slog.String("object", event.Watched.String()),
			slog.Int64("suppressed", suppressed))
	}

	return types.NamespacedName{}
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
