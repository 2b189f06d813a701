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
)

// refusal is the answer to a request that is not a review of this handler.
type refusal struct {
	code int
	// reason is a label for [Hooks.Refused].
	reason string
	// message is for the sender. It may quote the request.
	message string
}

// body returns a metav1.Status in JSON, as API servers and their clients expect it.
func (f *refusal) body() []byte {
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

// statusReasons are those of Kubernetes for an HTTP status. All others are internal errors.
var statusReasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusNotFound:              metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
	http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
}

func internalError() *refusal {
	return &refusal{http.StatusInternalServerError, "internal", "internal error"}
}

func badReview(err error) *refusal {
	reason := "malformed_review"
	if errors.Is(err, errUnsupportedVersion) {
		reason = "unsupported_version"
	}
	return &refusal{http.StatusBadRequest, reason, err.Error()}
}

// managerOf returns the manager in the path. It refuses another path, method or manager.
func (h *handler) managerOf(r *http.Request) (core.Manager, *refusal) {
	unknownPath := &refusal{http.StatusNotFound, "unknown_path", "want POST " + pathPrefix + "{manager}"}
	switch kind := r.PathValue("kind"); {
	case r.PathValue("manager") == "":
		return "", unknownPath
	case r.Method != http.MethodPost:
		return "", &refusal{http.StatusMethodNotAllowed, "method", fmt.Sprintf("want POST, have %.20q", r.Method)}
	case kind != "" && kindOf(kind) == "":
		return "", unknownPath
	}
	manager, err := core.ParseManager(r.PathValue("manager"))
	if err != nil {
		return "", &refusal{http.StatusBadRequest, "manager", err.Error()}
	}
	if !h.opts.Serves(manager) {
		return "", &refusal{http.StatusNotFound, "manager", fmt.Sprintf("no watch of manager %q here", manager)}
	}
	return manager, nil
}

// checkMediaType ignores a charset, because JSON is UTF-8 (RFC 8259, section 8.1).
func checkMediaType(header http.Header) *refusal {
	const want = "application/json"
	if have := header.Get("Content-Type"); have != want {
		if mediaType, _, err := mime.ParseMediaType(have); err != nil || mediaType != want {
			message := fmt.Sprintf("want Content-Type %s, have %.80q", want, have)
			return &refusal{http.StatusUnsupportedMediaType, "media_type", message}
		}
	}
	if have := header.Get("Content-Encoding"); have != "" && have != "identity" {
		message := fmt.Sprintf("want no Content-Encoding, have %.80q", have)
		return &refusal{http.StatusUnsupportedMediaType, "media_type", message}
	}
	return nil
}

func badBody(err error) *refusal {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		message := fmt.Sprintf("want a body of at most %d bytes", tooLarge.Limit)
		return &refusal{http.StatusRequestEntityTooLarge, "too_large", message}
	}
	if errors.Is(err, errNoRoom) {
		// There is no Retry-After: an API server would wait that long, and the write with it.
		return &refusal{http.StatusServiceUnavailable, "busy", err.Error()}
	}
	return &refusal{http.StatusBadRequest, "unreadable_body", "the body did not arrive completely"}
}

type reply struct {
	refusal *refusal
	manager core.Manager
	// parent is the kind in the path, "" if it has none.
	parent   string
	decision decision
	uid      string
	// missed is whether a resync replaces the event of the change.
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
		body = p.body()
	} else {
		code, body = p.refusal.code, p.refusal.body()
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

// body returns an AdmissionReview that has only a response. It makes one allocation.
func (p *reply) body() []byte {
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
