package canary

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxBody bounds a review, in bytes. The review of a Lease has less than 2 KiB.
const maxBody = 16 << 10

var errNoReview = errors.New("want an AdmissionReview of admission.k8s.io/v1 with a request")

// Handler answers the reviews of canary Leases, always with allowed: true. The nonce of the Lease
// is a warning in the answer. The zero value is ready to use, has no state, and is safe for
// concurrent use.
type Handler struct{}

// ServeHTTP answers one review. It answers with 400 for a body that is not a review, with 405 for
// methods other than POST, and with 413 above 16 KiB.
func (Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
		return
	}

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, fmt.Sprintf("want a body of at most %d bytes", maxBody), http.StatusRequestEntityTooLarge)
		return
	}

	answer, err := review(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // If the API server has gone, the write has no nonce in its answer.
}

// review allows a review without a nonce, such as a write by another program, without a warning.
func review(body []byte) ([]byte, error) {
	var in admissionReview
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoReview, err)
	}
	if in.Request == nil || in.Request.UID == "" || in.APIVersion != "admission.k8s.io/v1" {
		return nil, errNoReview
	}

	in.Response = &admissionResponse{UID: in.Request.UID, Allowed: true}
	if nonce := nonceOf(in.Request.Object); nonce != "" {
		in.Response.Warnings = []string{warningPrefix + nonce}
	}

	in.Request = nil
	return json.Marshal(in)
}

type admissionReview struct {
	Kind       string             `json:"kind,omitempty"`
	APIVersion string             `json:"apiVersion,omitempty"`
	Request    *admissionRequest  `json:"request,omitempty"`
	Response   *admissionResponse `json:"response,omitempty"`
}

type admissionRequest struct {
	UID    string          `json:"uid"`
	Object json.RawMessage `json:"object"`
}

type admissionResponse struct {
	UID      string   `json:"uid"`
	Allowed  bool     `json:"allowed"`
	Warnings []string `json:"warnings,omitempty"`
}

// maxNonce bounds a nonce in bytes. API servers truncate long warnings.
const maxNonce = 64

// nonceOf returns the nonce of a Lease, or "" if a canary did not write it. A nonce becomes part of
// a header, so only short hex is accepted.
func nonceOf(lease []byte) string {
	var object struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if json.Unmarshal(lease, &object) != nil {
		return ""
	}

	nonce := object.Metadata.Annotations[nonceAnnotation]
	if len(nonce) > maxNonce || strings.Trim(nonce, "0123456789abcdef") != "" {
		return ""
	}

	return nonce
}
