package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Why a request was refused, as [Hooks].Refused gets it.
const (
	// RefusedPath means that the path is not /validate/<manager>.
	RefusedPath = "unknown_path"
	// RefusedMethod means that the method is not POST.
	RefusedMethod = "method"
	// RefusedManager means that the manager in the path is no DNS-1123 label, or none of [Options].Managers.
	RefusedManager = "manager"
	// RefusedMediaType means that the body is not announced as plain application/json.
	RefusedMediaType = "media_type"
	// RefusedSize means that the body is larger than [Options].MaxBody.
	RefusedSize = "too_large"
	// RefusedBody means that the body did not arrive completely.
	RefusedBody = "unreadable_body"
	// RefusedBusy means that the body is large, and that there was no room for it beside others.
	RefusedBusy = "busy"
	// RefusedReview means that the body is no AdmissionReview.
	RefusedReview = "malformed_review"
	// RefusedVersion means that the body is an AdmissionReview of another version than admission.k8s.io/v1.
	RefusedVersion = "unsupported_version"
	// RefusedInternal means that something panicked before the review was read.
	RefusedInternal = "internal"
)

// refusal is a request that can not be answered as a review, and why.
type refusal struct {
	code    int
	reason  string
	message string
}

// body returns a metav1.Status, as API servers and their clients read it.
func (f *refusal) body() []byte {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  f.message,
		Reason:   statusReason(f.code),
		Code:     int32(f.code), //nolint:gosec // An HTTP status.
	}

	text, err := json.Marshal(&status)
	if err != nil { // A struct of strings and numbers always has a JSON form.
		return []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`)
	}

	return text
}

func statusReason(code int) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusMethodNotAllowed:
		return metav1.StatusReasonMethodNotAllowed
	case http.StatusRequestEntityTooLarge:
		return metav1.StatusReasonRequestEntityTooLarge
	case http.StatusUnsupportedMediaType:
		return metav1.StatusReasonUnsupportedMediaType
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	default:
		return metav1.StatusReasonInternalError
	}
}

func internalError() *refusal {
	return &refusal{http.StatusInternalServerError, RefusedInternal, "internal error"}
}

func badReview(err error) *refusal {
	reason := RefusedReview
	if errors.Is(err, errUnsupportedVersion) {
		reason = RefusedVersion
	}

	return &refusal{http.StatusBadRequest, reason, err.Error()}
}

func (h *Handler) managerOf(r *http.Request) (core.Manager, *refusal) {
	manager, err := core.ParseManager(r.PathValue("manager"))
	if err != nil {
		return "", &refusal{http.StatusBadRequest, RefusedManager, err.Error()}
	}

	if !h.opts.Serves(manager) {
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
