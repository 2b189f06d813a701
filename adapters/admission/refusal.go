package admission

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// The reasons of the webhook for a request that it refuses. Package core has three more:
// [core.ReasonTooLarge] and [core.ReasonUnreadable] for the body of the request, and
// [core.ReasonBusy] if no memory is free for the body.
const (
	// ReasonUnknownPath means that the path is not /validate/<manager>.
	ReasonUnknownPath core.Reason = "unknown_path"
	// ReasonMethod means that the method is not POST.
	ReasonMethod core.Reason = "method"
	// ReasonManager means that the manager is invalid or [Options].Serves refuses it.
	ReasonManager core.Reason = "manager"
	// ReasonMediaType means that the body is not plain application/json.
	ReasonMediaType core.Reason = "media_type"
	// ReasonMalformedReview means that the body is not a review of admission.k8s.io.
	ReasonMalformedReview core.Reason = "malformed_review"
	// ReasonUnsupportedVersion means that the body is a review of a version other than v1.
	ReasonUnsupportedVersion core.Reason = "unsupported_version"
	// ReasonInternal means that the webhook panicked.
	ReasonInternal core.Reason = "internal"
)

// refusal is the answer to a request that is not a review of this handler.
type refusal struct {
	code int
	// reason is a label for [Hooks.Refused].
	reason core.Reason
	// message is for the sender. It may quote the request.
	message string
}

// statusBody returns a metav1.Status in JSON, as API servers and their clients expect it.
func (f *refusal) statusBody() []byte {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  f.message,
		Reason:   cmp.Or(statusReasons[f.code], metav1.StatusReasonInternalError),
		Code:     int32(f.code), //nolint:gosec // An HTTP status.
	}

	text, _ := json.Marshal(&status) //nolint:errchkjson // It has strings and numbers only.
	return text
}

// statusReasons are the reasons of Kubernetes for an HTTP status. All others are internal errors.
var statusReasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusNotFound:              metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
	http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
}

// The refusals that are the same for each request.
var (
	internalError = &refusal{http.StatusInternalServerError, ReasonInternal, "internal error"}
	unknownPath   = &refusal{http.StatusNotFound, ReasonUnknownPath, "want POST " + pathPrefix + "{manager}"}
)

func badReview(err error) *refusal {
	reason := ReasonMalformedReview
	if errors.Is(err, errUnsupportedVersion) {
		reason = ReasonUnsupportedVersion
	}
	return &refusal{http.StatusBadRequest, reason, err.Error()}
}

// managerOf returns the manager in the path. It refuses another path, method or manager.
func (h *handler) managerOf(r *http.Request) (core.Manager, *refusal) {
	kind := r.PathValue("kind")

	switch {
	case r.PathValue("manager") == "":
		return "", unknownPath
	case r.Method != http.MethodPost:
		return "", &refusal{http.StatusMethodNotAllowed, ReasonMethod, fmt.Sprintf("want POST, have %.20q", r.Method)}
	case kind != "" && kindOf(kind) == "":
		return "", unknownPath
	}

	manager, err := core.ParseManager(r.PathValue("manager"))
	if err != nil {
		return "", &refusal{http.StatusBadRequest, ReasonManager, err.Error()}
	}
	if !h.opts.Serves(manager) {
		return "", &refusal{http.StatusNotFound, ReasonManager, fmt.Sprintf("no watch of manager %q here", manager)}
	}

	return manager, nil
}

// checkMediaType ignores a charset, because JSON is UTF-8 (RFC 8259, section 8.1).
func checkMediaType(header http.Header) *refusal {
	const want = "application/json"
	if have := header.Get("Content-Type"); have != want {
		if mediaType, _, err := mime.ParseMediaType(have); err != nil || mediaType != want {
			message := fmt.Sprintf("want Content-Type %s, have %.80q", want, have)
			return &refusal{http.StatusUnsupportedMediaType, ReasonMediaType, message}
		}
	}

	if have := header.Get("Content-Encoding"); have != "" && have != "identity" {
		message := fmt.Sprintf("want no Content-Encoding, have %.80q", have)
		return &refusal{http.StatusUnsupportedMediaType, ReasonMediaType, message}
	}
	return nil
}

func badBody(err error) *refusal {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		message := fmt.Sprintf("want a body of at most %d bytes", tooLarge.Limit)
		return &refusal{http.StatusRequestEntityTooLarge, core.ReasonTooLarge, message}
	}

	if errors.Is(err, errNoRoom) {
		// There is no Retry-After: an API server would wait that long, and the write with it.
		return &refusal{http.StatusServiceUnavailable, core.ReasonBusy, err.Error()}
	}
	return &refusal{http.StatusBadRequest, core.ReasonUnreadable, "the body did not arrive completely"}
}

// reply is the answer to one request, until it is written. Only the goroutine of the request uses
// it.
type reply struct {
	refusal *refusal
	manager core.Manager
	// parent is the kind in the path, "" if it has none.
	parent   string
	decision hook.Decision
	uid      string
	// missed says whether a resync replaces the event of the change.
	missed bool
	// warn writes a log line. It is called after the answer, as a log sink may stall. Nil: none.
	warn func()
}

// writeTo ignores write errors, which mean that the peer has disconnected.
func (p *reply) writeTo(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	// The answer may quote the request, so a browser must not guess its type.
	header.Set("X-Content-Type-Options", "nosniff")
	var body []byte
	code := http.StatusOK

	if p.refusal == nil {
		body = p.reviewBody()
	} else {
		code = p.refusal.code
		body = p.refusal.statusBody()
	}

	if code == http.StatusMethodNotAllowed {
		header.Set("Allow", http.MethodPost)
	}

	header.Set("Content-Length", strconv.Itoa(len(body))) // With it, a flush completes the answer.
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// replyCapacity is in bytes: the longest message with a uid of an API server.
const replyCapacity = 320

// reviewBody returns an AdmissionReview that has only a response. It makes one allocation.
func (p *reply) reviewBody() []byte {
	text := make([]byte, 0, replyCapacity)
	text = append(text, `{"kind":"`+reviewKind+`","apiVersion":"`+reviewAPIVersion+`","response":{"uid":`...)
	text = appendQuoted(text, p.uid)
	text = append(text, `,"allowed":true,"status":{"metadata":{},"status":"Success","message":`...)
	text = strconv.AppendQuote(text, messages[p.decision])

	return append(text, `,"code":200}}}`...)
}

func appendQuoted(to []byte, text string) []byte {
	isUnusual := func(r rune) bool { return r < ' ' || r > '~' }
	if strings.IndexFunc(text, isUnusual) < 0 { // As in the uids of an API server.
		return strconv.AppendQuote(to, text)
	}

	quoted, _ := json.Marshal(text) //nolint:errchkjson // Every string has a JSON form.
	return append(to, quoted...)
}

// messages are the texts in the status of a response. API servers show them in debug logs.
var messages = map[hook.Decision]string{
	hook.DecisionAccepted:  "accepted: an event will be sent to the manager",
	hook.DecisionCoalesced: "coalesced: an equal event is waiting to be sent",
	hook.DecisionDropped:   "dropped: the outbox is full, a resync replaces the event",
	// No event is sent for these.
	hook.DecisionUnchanged:  "unchanged: the watched part is the same",
	hook.DecisionIrrelevant: "irrelevant: not watched",
	hook.DecisionDryRun:     "dry_run: the write is not persisted",
	hook.DecisionNoOwner:    "no_owner: want <namespace>/<name> in the annotation of the owner",
	// These are rare.
	hook.DecisionNoName: "no_name: the object has no name that an event can carry",
	hook.DecisionUnread: "unread: too many large objects in parallel, a resync replaces the event",
	hook.DecisionFailed: "failed: see the log of the agent",
}
