package admission

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The reasons of refusals, as [Hooks].Refused lists them.
const (
	refusedPath      = "unknown_path"
	refusedMethod    = "method"
	refusedManager   = "manager"
	refusedMediaType = "media_type"
	refusedSize      = "too_large"
	refusedBody      = "unreadable_body"
	refusedBusy      = "busy"
	refusedReview    = "malformed_review"
	refusedVersion   = "unsupported_version"
	refusedInternal  = "internal"
)

// refusal is the answer to a request that is not a review of this handler.
type refusal struct {
	// code is an HTTP status.
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
	text, err := json.Marshal(&status)
	if err != nil { // A struct of strings and numbers always has a JSON form.
		return []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`)
	}
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
	return &refusal{http.StatusInternalServerError, refusedInternal, "internal error"}
}

func badReview(err error) *refusal {
	reason := refusedReview
	if errors.Is(err, errUnsupportedVersion) {
		reason = refusedVersion
	}
	return &refusal{http.StatusBadRequest, reason, err.Error()}
}

func unknownPath() *refusal {
	return &refusal{http.StatusNotFound, refusedPath, "want POST " + pathPrefix + "{manager}"}
}

// managerOf returns the manager in the path. It refuses an invalid one with 400. It refuses an
// unknown one with 404, and also an invalid kind after it.
func (h *handler) managerOf(r *http.Request) (core.Manager, *refusal) {
	if segment := r.PathValue("kind"); segment != "" && kindOf(segment) == "" {
		return "", unknownPath()
	}
	manager, err := core.ParseManager(r.PathValue("manager"))
	if err != nil {
		return "", &refusal{http.StatusBadRequest, refusedManager, err.Error()}
	}
	if !h.opts.Serves(manager) {
		return "", &refusal{http.StatusNotFound, refusedManager, fmt.Sprintf("no watch of manager %q here", manager)}
	}
	return manager, nil
}

// checkMediaType returns a refusal unless the body is plain, uncompressed JSON. A charset is
// ignored, because JSON is UTF-8 (RFC 8259, section 8.1).
func checkMediaType(header http.Header) *refusal {
	const want = "application/json"
	if have := header.Get("Content-Type"); have != want {
		if mediaType, _, err := mime.ParseMediaType(have); err != nil || mediaType != want {
			message := fmt.Sprintf("want Content-Type %s, have %.80q", want, have)
			return &refusal{http.StatusUnsupportedMediaType, refusedMediaType, message}
		}
	}
	if have := header.Get("Content-Encoding"); have != "" && have != "identity" {
		message := fmt.Sprintf("want no Content-Encoding, have %.80q", have)
		return &refusal{http.StatusUnsupportedMediaType, refusedMediaType, message}
	}
	return nil
}

func badBody(err error) *refusal {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		message := fmt.Sprintf("want a body of at most %d bytes", tooLarge.Limit)
		return &refusal{http.StatusRequestEntityTooLarge, refusedSize, message}
	}
	if errors.Is(err, errNoRoom) {
		// There is no Retry-After: an API server would wait that long, and the write with it.
		return &refusal{http.StatusServiceUnavailable, refusedBusy, err.Error()}
	}
	return &refusal{http.StatusBadRequest, refusedBody, "the body did not arrive completely"}
}
