package today

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"sync"
)

// Event is an event that a [Listener] has received.
type Event struct {
	Runtime string `json:"-"`
	Path    string `json:"-"`
	Body    string `json:"-"`
	Watched Object `json:"watched"`
}

// Object names a watched object, as it is in an event.
type Object struct {
	Namespace string `json:"Namespace"`
	Name      string `json:"Name"`
}

// Listener takes events of contract v2 as an operator of today does: the runtime is the Common Name
// of the certificate in the header.
type Listener struct {
	// Arrived is called for each event. It may be called concurrently.
	Arrived func(e Event)

	mu  sync.Mutex
	all []Event
}

var certificateInHeader = regexp.MustCompile(`Cert="([^"]*)"`)

// ServeHTTP implements [http.Handler].
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event Event
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	event.Runtime, event.Path, event.Body = runtimeOf(r), r.URL.Path, string(body)
	l.mu.Lock()
	l.all = append(l.all, event)
	l.mu.Unlock()
	if l.Arrived != nil {
		l.Arrived(event)
	}
	w.WriteHeader(http.StatusOK)
}

// Events returns all events so far.
func (l *Listener) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Event{}, l.all...)
}

func runtimeOf(r *http.Request) string {
	match := certificateInHeader.FindStringSubmatch(r.Header.Get("X-Forwarded-Client-Cert"))
	if match == nil {
		return ""
	}
	text, _ := url.QueryUnescape(match[1])
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return ""
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}
	return certificate.Subject.CommonName
}
