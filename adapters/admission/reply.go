package admission

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// reply is what a request is answered: a refusal, or else the decision on a review.
type reply struct {
	refusal  *refusal
	manager  core.Manager
	decision Decision
	uid      string
}

func (p *reply) writeTo(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")

	// A peer that has gone is no error of ours, and there is nobody left to tell.
	if p.refusal == nil {
		_, _ = w.Write(p.body())

		return
	}

	if p.refusal.code == http.StatusMethodNotAllowed {
		header.Set("Allow", http.MethodPost)
	}

	w.WriteHeader(p.refusal.code)
	_, _ = w.Write(p.refusal.body())
}

const replyCapacity = 320 // The longest message with an uid as API servers make them.

// body is an AdmissionReview with nothing in it but the response.
func (p *reply) body() []byte {
	text := make([]byte, 0, replyCapacity)
	text = append(text, `{"kind":"`+reviewKind+`","apiVersion":"`+reviewAPIVersion+`","response":{"uid":`...)
	text = appendQuoted(text, p.uid)
	text = append(text, `,"allowed":true,"status":{"metadata":{},"status":"Success","message":`...)
	text = strconv.AppendQuote(text, p.decision.message())

	return append(text, `,"code":200}}}`...)
}

// appendQuoted appends text as a JSON string.
func appendQuoted(to []byte, text string) []byte {
	if isPlain(text) {
		return append(append(append(to, '"'), text...), '"')
	}

	quoted, err := json.Marshal(text)
	if err != nil { // Every string has a JSON form.
		return append(to, `""`...)
	}

	return append(to, quoted...)
}

// isPlain reports whether text is one of letters, digits and '-', as every uid of an API server is (RFC 9562).
func isPlain(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}

	return true
}
