package admission

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// reply is the answer to a request: a refusal, or the decision on a review.
type reply struct {
	// refusal is nil for a review.
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

// writeTo writes headers and body. It ignores write errors, which mean that the peer has
// disconnected.
func (p *reply) writeTo(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	// The answer may quote the request, so a browser must not guess its type.
	header.Set("X-Content-Type-Options", "nosniff")
	if p.refusal == nil {
		p.send(w, http.StatusOK, p.body())
		return
	}
	if p.refusal.code == http.StatusMethodNotAllowed {
		header.Set("Allow", http.MethodPost)
	}
	p.send(w, p.refusal.code, p.refusal.body())
}

// send announces the length, so that a flush completes the answer.
func (p *reply) send(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
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
	if isPlain(text) {
		return append(append(append(to, '"'), text...), '"')
	}
	quoted, err := json.Marshal(text)
	if err != nil { // Every string has a JSON form.
		return append(to, `""`...)
	}
	return append(to, quoted...)
}

// isPlain reports whether text has only letters, digits and '-', as the uids of an API server (RFC
// 9562).
func isPlain(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return true
}
