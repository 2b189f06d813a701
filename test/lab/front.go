package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// Fault is a fault of a control plane.
type Fault string

// The faults of a [Plane] and of a [Front].
const (
	// Up is none.
	Up Fault = "up"
	// Refusing closes the port and the connections.
	Refusing Fault = "refused"
	// Unavailable answers 503.
	Unavailable Fault = "503"
	// TooFast answers 429.
	TooFast Fault = "429"
	// Forbidden answers 403.
	Forbidden Fault = "403"
	// Hanging takes requests and never answers.
	Hanging Fault = "hanging"
	// HalfOpen discards the bytes of a connection, and sends none. Connections made before or
	// meanwhile stay like that when the fault ends.
	HalfOpen Fault = "half-open"
	// NoHandshake accepts connections and never sends a byte.
	NoHandshake Fault = "no handshake"
	// OtherCA presents a certificate that the agent does not trust.
	OtherCA Fault = "other CA"
	// OtherName presents a certificate for another name.
	OtherName Fault = "other name"
)

// Front is an HTTPS server for runtimes, with the faults of its answers and of its certificate. The relay before it has
// those of connections.
type Front struct {
	Addr string

	handler http.Handler
	serving map[Fault]*tls.Config

	mu    sync.Mutex
	fault Fault
	wait  int
}

// StartFront serves a handler with certificates of pki. The test ends it.
func StartFront(t testing.TB, pki *PKI, handler http.Handler) *Front {
	t.Helper()
	inner := Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	f := &Front{Addr: inner.Addr().String(), handler: handler, serving: faultCertificates(t, pki)}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{
		Handler:           http.HandlerFunc(f.answer),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // It would be full of the faults.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2", "http/1.1"},
			GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				fault, _ := f.now()
				if config := f.serving[fault]; config != nil {
					return config.GetConfigForClient(hello)
				}
				return f.serving[Up].GetConfigForClient(hello)
			},
		},
	}
	Run(t, "front", func(context.Context) error {
		if err := server.ServeTLS(inner, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	t.Cleanup(func() {
		cancel()           // Requests that hang end with it.
		_ = server.Close() // The reason of its end counts.
	})
	return f
}

// faultCertificates returns the configuration of each fault that has a certificate of its own, and
// under Up that of all others.
func faultCertificates(t testing.TB, pki *PKI) map[Fault]*tls.Config {
	t.Helper()
	other := NewPKI(t)
	return map[Fault]*tls.Config{
		Up:        serverConfig(pki.CA, pki.CA, testpki.Options{}),
		OtherCA:   serverConfig(pki.CA, other.CA, testpki.Options{}),
		OtherName: serverConfig(pki.CA, pki.CA, testpki.Options{DNSNames: []string{"other.example.com"}}),
	}
}

// serverConfig trusts clients of one CA and presents a certificate of another.
func serverConfig(clients, issuer *testpki.CA, opts testpki.Options) *tls.Config {
	config := keys.ServerTLSConfig(Material(Must(issuer.Server("listener", opts)), clients))
	choose := config.GetConfigForClient
	// Else a session of the right certificate could be resumed.
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		if err != nil {
			return nil, err
		}
		chosen = chosen.Clone()
		chosen.SessionTicketsDisabled = true
		return chosen, nil
	}
	return config
}

func (f *Front) now() (fault Fault, wait int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault, f.wait
}

// Set lets a fault begin, and the one before end. Answers ask for a wait of so many seconds, 0 for none.
func (f *Front) Set(fault Fault, wait int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.wait = fault, wait
}

// answer is that of the handler, unless a fault comes before it.
func (f *Front) answer(w http.ResponseWriter, r *http.Request) {
	fault, wait := f.now()
	status := map[Fault]int{
		Unavailable: http.StatusServiceUnavailable, TooFast: http.StatusTooManyRequests, Forbidden: http.StatusForbidden,
	}[fault]
	switch {
	case fault == Hanging:
		<-r.Context().Done() // The sender gives up, or the test ends.
	case status == 0:
		f.handler.ServeHTTP(w, r)
	default:
		if wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(wait))
		}
		w.WriteHeader(status)
	}
}
