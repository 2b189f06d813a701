// Package admission is a change source for the webhook of a runtime. The API server sends each
// write as an AdmissionReview (admission.k8s.io/v1) before it commits the write.
//
// The handler of [New] allows the write in every review and never waits for the control plane. A
// [core.Filter] decides whether the change matters. If it does, the handler offers an event to a
// [core.Acceptor], which must not block.
//
// [WebhookConfiguration] builds the object that makes an API server call the handler.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// New returns a handler that offers its events to acceptor. The acceptor is called concurrently and
// must not block. New fails if acceptor is nil or an option is invalid. The error names all invalid
// options.
//
// The handler answers the AdmissionReviews of an API server at POST /validate/<manager>, and at
// POST /validate/<manager>/<kind> for subresources, always with allowed: true.
//
// A review is answered with 200 and an AdmissionReview with the same uid. Its
// response.status.message begins with the decision ([Hooks].Reviewed). Any other request gets a
// metav1.Status:
//
//   - 400 if the body is not an admission.k8s.io/v1 review, or the manager is invalid
//   - 404 for an unknown path or manager
//   - 405, 413 and 415 for the method, the size and the media type
//   - 503 if there is no memory for the body and the uid of the review cannot be found either
//
// When a review cannot be read or decided, the handler accepts a resync of the manager after its
// answer. The deletion of the definition of a watched custom resource also becomes a resync,
// because an API server deletes the objects of that resource without a review.
//
// The handler is safe for concurrent use and starts no goroutine. It blocks until the body of a
// review has arrived, and waits at most 250 ms for memory. The server must bound the duration and
// the number of requests.
func New(acceptor core.Acceptor, opts Options) (http.Handler, error) {
	if option.IsNil(acceptor) {
		return nil, errors.New("admission handler: want an acceptor, have nil")
	}

	opts = opts.withDefaults()
	if err := errors.Join(option.NoneNegative(opts), core.ValidateOwnerAnnotation(opts.OwnerAnnotation)); err != nil {
		return nil, fmt.Errorf("admission handler: %w", err)
	}

	h := &handler{
		acceptor: acceptor, opts: opts, log: opts.Logger, mux: http.NewServeMux(),
		bodies: newBodies(opts.MaxBody, opts.MaxBodies),
		paced:  pacedlog.New(opts.Logger, warnEvery, "reason", "problem"),
	}
	for _, pattern := range []string{pathPrefix + "{manager}", pathPrefix + "{manager}/{kind}", "/"} {
		h.mux.HandleFunc(pattern, h.serveRequest)
	}

	return h, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A mux redirects from such a path to another one. An API server does not expect a redirect.
	if !isClean(r.URL) {
		r.SetPathValue("manager", "")
		h.serveRequest(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// isClean reports whether the path is absolute, without "." and ".." and double slashes.
func isClean(u *url.URL) bool {
	escaped := u.EscapedPath()
	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped
}

// serveRequest writes a reply even if something panics. Without a manager in the path, it is a
// refusal.
func (h *handler) serveRequest(w http.ResponseWriter, r *http.Request) {
	started := h.opts.Now()
	answer := reply{refusal: internalError}

	// The hooks for the answer are called last, even if a step before them panics.
	defer h.guardCall(hook.PlaceHooks, func() { h.reportAnswer(r.Context(), &answer, started) })

	h.guardCall(hook.PlaceHooks, func() { h.opts.Hooks.InFlight(1) })
	h.guardCall(hook.PlaceRequest, func() { answer = h.answerReview(w, r, started) })
	answer.writeTo(w)

	// The acceptor or the log may stall, so the API server gets its answer first.
	if answer.refusal != nil || answer.missed || answer.warn != nil {
		_ = http.NewResponseController(w).Flush() // The answer of a writer that cannot flush is a moment later.
	}
	if answer.missed { // The API server commits the change only after the answer.
		h.guardCall(hook.PlaceAcceptor, func() {
			h.acceptor.Accept(answer.manager, core.WatchEvent{Resync: true, Time: h.opts.Now()})
		})
	}
}

// answerReview replies to an AdmissionReview. It may use w for the limits of the body only. If it
// panics while it reads the review, a resync replaces the event.
func (h *handler) answerReview(w http.ResponseWriter, r *http.Request, started time.Time) reply {
	manager, refused := h.managerOf(r)
	if refused == nil {
		refused = checkMediaType(r.Header)
	}
	if refused != nil {
		return reply{refusal: refused}
	}

	answer := reply{manager: manager, missed: true, refusal: internalError}
	h.guardCall(hook.PlaceRequest, func() { answer = h.reviewFor(manager, w, r, started) })
	return answer
}

func (h *handler) reviewFor(manager core.Manager, w http.ResponseWriter, r *http.Request, started time.Time) reply {
	// The decision refers to the body, so the body is released last.
	body, err := h.bodies.readBody(w, r)
	defer body.releaseBuffer()

	if err != nil {
		return h.answerUnread(w, r, manager, body, err)
	}

	q, err := readReview(body.data)
	if err != nil {
		return reply{manager: manager, missed: true, refusal: badReview(err)}
	}

	q.traceParent = traceParentOf(r.Header)
	answer := reply{manager: manager, parent: kindOf(r.PathValue("kind")), uid: q.uid, decision: hook.DecisionFailed}
	h.guardCall(hook.PlaceAcceptor, func() { answer.decision = h.decideReview(r.Context(), &answer, q, started) })
	answer.missed = answer.decision == hook.DecisionFailed

	return answer
}

// answerUnread replies to a review that was not read. A review that found no memory is allowed,
// because an API server reports each missing answer in its metrics and logs.
func (h *handler) answerUnread(
	w http.ResponseWriter, r *http.Request, manager core.Manager, body *body, cause error,
) reply {
	if errors.Is(cause, errNoRoom) && r.Context().Err() == nil {
		if uid := body.skimRest(http.MaxBytesReader(w, r.Body, h.opts.MaxBody)); uid != "" {
			return reply{manager: manager, uid: uid, decision: hook.DecisionUnread, missed: true}
		}
	}
	return reply{manager: manager, missed: true, refusal: badBody(cause)}
}

func (h *handler) reportAnswer(ctx context.Context, answer *reply, started time.Time) {
	took := h.opts.Now().Sub(started)
	h.opts.Hooks.InFlight(-1)

	if answer.refusal != nil {
		h.opts.Hooks.Refused(hook.Refusal{Status: answer.refusal.code, Reason: answer.refusal.reason, Took: took})
		// A status of 4xx is the fault of the sender, but it costs events of a manager.
		h.paced.LogAttrs(ctx, slog.LevelWarn, "refused a request that is not an AdmissionReview",
			slog.Int("status", answer.refusal.code), slog.String("reason", string(answer.refusal.reason)),
			slog.String("message", answer.refusal.message))
		return
	}

	h.opts.Hooks.Reviewed(hook.Review{Manager: answer.manager, Decision: answer.decision, Took: took})
	if answer.warn != nil {
		answer.warn()
	}
	if h.log.Enabled(ctx, slog.LevelDebug) {
		h.log.LogAttrs(ctx, slog.LevelDebug, "reviewed",
			slog.String("manager", string(answer.manager)), slog.String("decision", string(answer.decision)),
			slog.String("uid", answer.uid), slog.Duration("took", took))
	}
}

// warnEvery is the time between two lines of one kind that others can cause.
const warnEvery = time.Minute
