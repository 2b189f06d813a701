package loss

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Gate is the way from the agents to the API server of the runtime, for agents that watch it: a
// relay, and then a proxy that can answer in place of the API server.
type Gate struct {
	relay   *lab.Relay
	front   *httptest.Server
	expired atomic.Bool
}

// NewGate opens a way at addr to the API server of config. The proxy has the certificate, and passes on the
// credentials of each request.
func NewGate(addr string, config *rest.Config, certificate tls.Certificate) (*Gate, error) {
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	g := &Gate{}
	g.front = httptest.NewUnstartedServer(g.serve(server, transport))
	g.front.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	g.front.EnableHTTP2 = true
	g.front.Config.ErrorLog = log.New(io.Discard, "", 0) // Connections end all the time.
	g.front.StartTLS()
	g.relay, err = lab.NewRelay(addr, 0, g.front.Listener.Addr().String())
	return g, err
}

// URL is where agents find the API server.
func (g *Gate) URL() string { return "https://" + g.relay.Addr() }

// Close ends everything.
func (g *Gate) Close() {
	g.relay.Close()
	g.front.CloseClientConnections()
	g.front.Close()
}

// Break begins a fault. The strength selects the variant of [WatchLost].
func (g *Gate) Break(f Fault) {
	switch {
	case f.Kind == VersionExpired:
		g.expired.Store(true)
		g.relay.Cut()
	case f.Strength%3 == 0:
		g.relay.Refuse()
	case f.Strength%3 == 1:
		g.relay.Hold(true)
		g.relay.Cut()
	default:
		g.relay.Freeze()
	}
}

// Mend ends a fault. Frozen and held connections stay so, until the agents give them up.
func (g *Gate) Mend() error {
	g.relay.Hold(false)
	g.expired.Store(false)
	return g.relay.Open()
}

// serve passes requests on, except while versions have expired.
func (g *Gate) serve(server *url.URL, transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0), // Requests end with their connections.
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.expired.Load() {
			refuse(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// refuse answers that the version of a watch has expired, and that lists have to wait. So a new list
// is the only way on, and it comes after more writes.
func refuse(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	status, reason := http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	if query.Get("watch") != "" && query.Get("sendInitialEvents") == "" {
		status, reason = http.StatusGone, metav1.StatusReasonExpired
	}
	text, _ := json.Marshal(metav1.Status{ // It can be written as JSON.
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(status),
	})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // The agent may be gone.
}
