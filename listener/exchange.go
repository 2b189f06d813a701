package listener

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

type exchange struct {
	*endpoint

	request *http.Request
}

// ServeHTTP answers one request. Use it to mount the listener in another server, which needs
// timeouts and must accept headers of 64 KiB. With [FromTLS], such a server verifies a chain in the
// first request of a certificate rather than in the handshake.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isClean(r) {
		l.nowhere.ServeHTTP(w, r)
		return
	}
	l.mux.ServeHTTP(w, r)
}

// isClean reports whether a mux takes the path as it is. It redirects others, which a sender of
// events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()
	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := e.opts.Now()
	x := exchange{endpoint: e, request: e.withObserved(r)}
	a := x.answerRequest()
	a.writeTo(w)
	x.reportAnswer(&a, e.opts.Now().Sub(started))
}

func (l *Listener) withObserved(r *http.Request) *http.Request {
	v, ok := l.verifier.(*combined)
	isObserving := ok && v.observeOnly
	if !isObserving && !l.peers.observeOnly {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), observedKey{}, &observed{}))
}

// answerRequest charges the sender before anything else, so that a stranger learns nothing.
func (x *exchange) answerRequest() (a answer) {
	defer x.recoverPanic(&a, reasons.NotReady)
	if x.state.Load() >= stopping {
		return refuseAndClose(http.StatusServiceUnavailable, reasons.ShuttingDown)
	}

	peer, err := x.peers.Peer(x.request)
	if err != nil {
		return x.answerStranger(err)
	}
	if err := x.intake.Admit(peer); intake.IsRevoked(err) {
		return x.answerRevoked(&peer, err)
	}

	if x.peers.ownsConnection { // The fleet then notices the end of the connection.
		peer.Lost = httpserver.SetOrigin(x.request.Context(), "runtime "+string(peer.ID))
	}

	a = x.answerPeer(&peer)
	a.runtime = peer.ID
	if manager := core.Manager(x.request.PathValue(wildcard)); x.intake.Serves(manager) {
		a.manager = manager
	}
	return a
}

func (x *exchange) answerPeer(peer *core.Peer) (a answer) {
	defer x.recoverPanic(&a, "")

	account := intake.Account{Name: string(peer.ID)}
	if tooFast := x.intake.Enter(account, x.chargedSize()); tooFast != nil {
		return x.tooFast(tooFast)
	}
	defer x.intake.Leave(account)
	return x.routeRequest(peer)
}

// answerStranger answers a sender that is not identified. It loses its connection, unless that is a
// gateway's. Each attempt then costs it a handshake, in which a runtime shows a new certificate.
func (x *exchange) answerStranger(err error) answer {
	a := answerTo(contract.V3, intake.Unverified(err))
	account := intake.Account{Name: httpserver.Origin(x.request.RemoteAddr), Stranger: true}
	if tooFast := x.intake.Charge(account); tooFast != nil {
		late := x.tooFast(tooFast)
		late.closes = a.Reason == ReasonUntrustedProxy
		return late
	}

	a.public = reasons.NotReady
	if a.Status != http.StatusServiceUnavailable {
		a.Status = http.StatusUnauthorized
		a.public = reasons.Unauthenticated
		a.closes = x.peers.ownsConnection || a.Reason == ReasonUntrustedProxy
	}
	return a
}

// answerRevoked answers a sender with a revoked certificate. It is charged as a stranger, so that a
// thief costs nothing of the share of the runtime, and loses its connection.
func (x *exchange) answerRevoked(peer *core.Peer, err error) answer {
	a := answerTo(x.version, err)
	account := intake.Account{Name: httpserver.Origin(x.request.RemoteAddr), Stranger: true}
	if tooFast := x.intake.Charge(account); tooFast != nil {
		a = x.tooFast(tooFast)
	}
	a.closes = x.peers.ownsConnection
	a.runtime = peer.ID
	return a
}

// recoverPanic answers a panic with 503: the same events may be taken later.
func (x *exchange) recoverPanic(a *answer, public core.Reason) {
	cause := recover()
	if cause == nil {
		return
	}

	err := fmt.Errorf("%w: %v", errPanic, cause)
	*a = refuse(http.StatusServiceUnavailable, reasons.Panic)
	a.err = err
	a.public = public
	x.opts.Logger.LogAttrs(x.request.Context(), slog.LevelError, "panic while answering a request",
		slog.Any("error", err), slog.String("stack", string(debug.Stack())))
}

var errPanic = errors.New("panic")

// routeRequest is for an identified sender within its share. A stranger does not learn which paths
// exist.
func (x *exchange) routeRequest(peer *core.Peer) answer {
	manager := core.Manager(x.request.PathValue(wildcard))
	switch {
	case x.version == "":
		return refuse(http.StatusNotFound, reasons.NotFound)
	case x.request.Method != http.MethodPost:
		return refuse(http.StatusMethodNotAllowed, reasons.Method)
	case !x.intake.Serves(manager):
		return x.answerBatch(x.intake.Receive(x.request.Context(), &intake.Request{Peer: *peer, Manager: manager}))
	}
	return x.receiveBatch(peer, manager)
}

func (x *exchange) receiveBatch(peer *core.Peer, manager core.Manager) answer {
	if !isMediaType(x.request.Header.Get("Content-Type"), x.version.ContentType()) {
		return refuse(http.StatusUnsupportedMediaType, reasons.MediaType)
	}

	batch, refused := x.readBatch()
	if refused.Status != 0 {
		return refused
	}

	recheckAfter := x.recheckAfter(manager)
	err := x.intake.Receive(x.request.Context(),
		&intake.Request{Peer: *peer, Manager: manager, Batch: batch, Contract: x.version})
	a := x.answerBatch(err)
	a.recheckAfter = recheckAfter
	return a
}

// recheckAfter is 0 for contracts v1 and v2, because their events do not name their writes.
func (x *exchange) recheckAfter(manager core.Manager) time.Duration {
	if !x.version.Numbered() {
		return 0
	}
	return x.intake.RecheckAfter(x.request.Context(), manager)
}

// isMediaType compares media types without their parameters (RFC 9110, section 8.3.1).
func isMediaType(header, want string) bool {
	if header == want {
		return true
	}
	have, _, err := mime.ParseMediaType(header)
	return err == nil && have == want
}

// readBatch bounds the bytes that it reads. The buffer grows with the bytes that arrive, and not
// with the announced length.
func (x *exchange) readBatch() (core.Batch, answer) {
	limit := int64(x.version.MaxBody())
	if x.request.ContentLength > limit {
		return core.Batch{}, refuseAndClose(http.StatusRequestEntityTooLarge, reasons.TooLarge)
	}

	buffer, _ := x.bodies.Get().(*bytes.Buffer)
	defer x.keepBuffer(buffer)
	size, err := buffer.ReadFrom(io.LimitReader(x.request.Body, limit+1))
	var batch core.Batch
	var refused answer

	switch {
	case size > limit:
		refused = refuseAndClose(http.StatusRequestEntityTooLarge, reasons.TooLarge)
	case err != nil, size < x.request.ContentLength:
		// Not 400, on which the sender drops the events: the path failed, not the events.
		refused = refuse(http.StatusServiceUnavailable, reasons.Unreadable)
	default:
		batch, err = x.version.Decode(buffer.Bytes())
		if err != nil {
			refused = refuse(http.StatusBadRequest, reasons.Malformed)
		}
	}

	refused.err = err
	return batch, refused
}

// answerBatch turns the result of the intake into an answer, and closes the connection to a replica
// that does not lead.
func (x *exchange) answerBatch(err error) answer {
	whole, isWhole := errors.AsType[*intake.Failure](err)
	if isWhole && whole.Fault == intake.FaultOfShare {
		return x.tooFast(err)
	}

	a := answerTo(x.version, err)
	if isWhole && whole.Fault == intake.FaultOfReplica {
		// The sender connects again, to find the replica that leads. Behind a gateway that costs no
		// handshake of the runtime, so that it need not wait.
		a.closes = true
		a.atOnce = x.peers.behindGateway && a.RetryAfter == 0
	}
	return a
}

// reportAnswer counts every answer, and logs a refusal.
func (x *exchange) reportAnswer(a *answer, took time.Duration) {
	x.opts.Hooks.Answered(hook.Answer{
		Contract: x.version, Manager: a.manager, Status: a.Status, Reason: cmp.Or(a.Reason, observedIn(x.request)),
		Took: took,
	})
	if a.Reason == "" {
		return
	}

	level, suppressed := x.takeLevel(a)
	x.opts.Logger.LogAttrs(x.request.Context(), level, "request refused", slog.Int("suppressed", suppressed),
		slog.String("contract", string(x.version)), slog.String("manager", string(a.manager)),
		slog.String("runtime", string(a.runtime)), slog.String("remote", x.request.RemoteAddr),
		slog.Int("status", a.Status), slog.String("reason", string(a.Reason)),
		slog.Duration("took", took), slog.Any("error", a.err))
}

// takeLevel returns warn for a refusal that needs an administrator, if a line is due for its
// runtime and reason. It counts the lines that were not due.
func (x *exchange) takeLevel(a *answer) (level slog.Level, suppressed int) {
	switch a.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusServiceUnavailable:
		suppressed, due := x.refusals.Take(string(a.runtime)+" "+string(a.Reason), x.opts.Now())
		if due {
			return slog.LevelWarn, suppressed
		}
	}
	return slog.LevelDebug, 0
}

// chargedSize returns the bytes that a request costs. It counts a body of unknown size as the
// largest. The body of a wrong path counts, too, because net/http reads it to keep the connection.
func (x *exchange) chargedSize() int64 {
	size := x.excessHeader()
	if x.request.Body == nil || x.request.Body == http.NoBody {
		return size
	}

	largest := int64(cmp.Or(x.version.MaxBody(), contract.V3.MaxBody()))
	if x.request.ContentLength < 0 {
		return size + largest
	}
	return size + min(largest, x.request.ContentLength)
}

// freeHeader is the size of headers that cost no share. The certificate of a gateway fits into it.
const freeHeader = 16 << 10

// excessHeader returns the bytes of headers, and of the path with its query, beyond those that are
// free.
func (x *exchange) excessHeader() int64 {
	size := len(x.request.RequestURI) - freeHeader
	for name, values := range x.request.Header {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return int64(max(size, 0))
}

// tooFast refuses a request beyond the share of its account, and pauses its connection, unless that
// is a gateway's. Contracts v1 and v2 get 503: their deployed agents give up an event on 429.
func (x *exchange) tooFast(err error) answer {
	if f, ok := errors.AsType[*intake.Failure](err); ok && x.peers.ownsConnection {
		httpserver.PauseReads(x.request.Context(), spread(f.Pause))
	}

	a := answerTo(x.version, err)
	a.Status = http.StatusTooManyRequests
	if x.version != "" && !x.version.Numbered() {
		a.Status = http.StatusServiceUnavailable
	}
	return a
}

// shortestPause bounds the cost of a single connection: an answer costs processor time, and a flood
// comes as fast as it is answered.
const shortestPause = 500 * time.Millisecond

// spread keeps connections that were paused together from coming back together.
func spread(pause time.Duration) time.Duration {
	return max(pause, shortestPause+rand.N(shortestPause)) //nolint:gosec // Jitter is no secret.
}

// answer is the result of one request, until it is counted, logged and written. Only the goroutine
// of the request uses it.
type answer struct {
	// Answer contains the reason for metrics and logs. The reason is empty if every event was
	// accepted.
	contract.Answer

	// runtime is the identified sender, manager the operator if it is one of this listener's.
	runtime core.RuntimeID
	manager core.Manager
	// public replaces the reason in the body: a stranger does not learn the cause.
	public core.Reason
	// atOnce asks for no wait: the next request may reach another replica.
	atOnce bool
	// recheckAfter comes from the handler. It is sent only with an acknowledgement.
	recheckAfter time.Duration
	// closes ends the connection, so that the sender connects to another replica.
	closes bool
	// err is for the log.
	err error
}

func refuse(status int, reason core.Reason) answer {
	return answer{Answer: contract.Answer{Refusal: contract.Refusal{Status: status, Reason: reason}}}
}

func refuseAndClose(status int, reason core.Reason) answer {
	a := refuse(status, reason)
	a.closes = true
	return a
}

func answerTo(version contract.Version, err error) answer {
	return answer{Answer: version.AnswerTo(err), err: err}
}

// writeTo sends an empty body with an acknowledgement, and JSON with a refusal.
func (a *answer) writeTo(w http.ResponseWriter) {
	header := w.Header()
	if a.closes {
		header.Set("Connection", "close")
	}

	if a.Reason == "" {
		if after := a.recheckAfter.Milliseconds(); after > 0 {
			header.Set(contract.RecheckAfterHeader, strconv.FormatInt(after, 10))
		}
		w.WriteHeader(a.Status)
		return
	}

	switch a.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if !a.atOnce {
			header.Set("Retry-After", a.retryAfterValue())
		}
	case http.StatusMethodNotAllowed:
		header.Set("Allow", http.MethodPost)
	}

	sent := contract.Answer{Refusal: contract.Refusal{Reason: cmp.Or(a.public, a.Reason)}, Failed: a.Failed}
	body, _ := sent.Body() // Strings and numbers always have a JSON form.
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // It fails when the sender is gone.
}

// retryAfterValue returns the value of Retry-After, in whole seconds (RFC 9110, section 10.2.3).
// Without a wait it is random, so that senders that were refused together do not come back
// together.
func (a *answer) retryAfterValue() string {
	if a.RetryAfter > 0 {
		return strconv.FormatInt(contract.Seconds(a.RetryAfter), 10)
	}
	const shortest, longest = 1, 3
	return strconv.Itoa(shortest + rand.IntN(longest-shortest+1)) //nolint:gosec // Jitter is no secret.
}

// maxKept is the size of the largest buffer that is kept for another request: the size of the
// largest body, after the buffer grew. The garbage collector frees buffers that no request takes.
const maxKept = 512 << 10

func (e *endpoint) keepBuffer(buffer *bytes.Buffer) {
	if buffer.Cap() <= maxKept {
		buffer.Reset()
		e.bodies.Put(buffer)
	}
}
