package loss

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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
func NewGate(addr string, config *rest.Config, certificate tls.Certificate) *Gate {
	transport, g := lab.Must(rest.TransportFor(rest.AnonymousClientConfig(config))), &Gate{}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		panic(err)
	}
	g.front = httptest.NewUnstartedServer(g.serve(server, transport))
	g.front.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	g.front.EnableHTTP2 = true
	g.front.Config.ErrorLog = log.New(io.Discard, "", 0) // Connections end all the time.
	g.front.StartTLS()
	g.relay = lab.Must(lab.NewRelay(addr, 0, g.front.Listener.Addr().String()))
	return g
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

// newSource prepares the runtime for its agents, and returns their settings.
func (s *scene) newSource() map[string]string {
	s.t.Helper()
	if s.with.source == sourceInformer {
		return s.newInformer()
	}
	s.canary = lab.NewCanary(s.t, s.plane, s.name)
	env := maps.Clone(s.canary.Env)
	env["CANARY_INTERVAL"] = canaryInterval.String()
	return env
}

// newInformer opens the way to the API server of the runtime, and grants the right to watch.
func (s *scene) newInformer() map[string]string {
	s.t.Helper()
	leaf := lab.Must(s.pki.CA.Server("api-server", testpki.Options{}))
	s.gate = NewGate(lab.Address(lab.FreePort(s.t)), s.plane.Config, leaf.TLS)
	s.t.Cleanup(s.gate.Close)
	ca, _, _ := s.pki.Volume(leaf).Paths()
	env := map[string]string{"WATCHERS": s.watcher()}
	lab.GrantWatch(s.t, s.plane, s.name, env, rbacv1.PolicyRule{
		APIGroups: []string{lab.Widgets().Group}, Resources: []string{lab.Widgets().Resource}, Verbs: []string{"list", "watch"},
	})
	env["INFORMER_API_SERVER"], env["INFORMER_CA_CERT"] = s.gate.URL(), ca
	return env
}

// watcher returns the Watcher of the agents, in YAML.
func (s *scene) watcher() string {
	widgets := lab.Widgets()
	return fmt.Sprintf(`
kind: Watcher
metadata: {name: %s}
spec:
  manager: %s
  labelsToWatch: {%s: %s}
  resourceToWatch: {group: %s, version: %s, resource: %s}
`, s.name, manager, label, s.name, widgets.Group, widgets.Version, widgets.Resource)
}
