package loss

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Path leads from the agents to the operator, or to a stand-in. A relay makes the faults of the
// port and of connections. Behind it, toxiproxy makes the faults within a connection.
type Path struct {
	relay    *lab.Relay
	proxy    *toxiproxy.Proxy
	operator string
	front    *httptest.Server
	answers  *answers
}

// NewPath opens a way from addr over the address via to the operator, which has the certificate.
// Both addresses are left and taken again.
func NewPath(addr, via, operator string, certificate tls.Certificate) *Path {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Path{
		proxy:    toxiproxy.NewProxy(server, "control plane", via, operator),
		operator: operator,
		answers:  newAnswers(),
	}
	p.front = httptest.NewUnstartedServer(p.answers)
	p.front.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	p.front.EnableHTTP2 = true
	p.front.StartTLS()
	if err := p.proxy.Start(); err != nil {
		panic(err)
	}
	p.relay = lab.Must(lab.NewRelay(addr, 0, p.proxy.Listen))
	return p
}

// Addr is where agents find the control plane.
func (p *Path) Addr() string { return p.relay.Addr() }

// Close ends everything.
func (p *Path) Close() {
	p.answers.release()
	p.relay.Close()
	p.proxy.Stop()
	p.front.CloseClientConnections()
	p.front.Close()
}

// Break begins a fault.
func (p *Path) Break(f Fault) error {
	switch f.Kind {
	case HalfOpen:
		p.relay.Freeze()
	case Refused:
		p.relay.Refuse()
	case Unavailable, TooMany, Hanging:
		p.answers.set(f)
		return p.leadTo(p.front.Listener.Addr().String())
	default:
		return p.poison(f)
	}
	return nil
}

// Mend ends a fault and its effects.
func (p *Path) Mend() error {
	p.answers.release()
	p.proxy.Toxics.ResetToxics(context.Background())
	if err := p.leadTo(p.operator); err != nil {
		return err
	}
	return p.relay.Open()
}

// leadTo sets the other end of new connections, and closes those that exist.
func (p *Path) leadTo(upstream string) error {
	if p.proxy.Upstream == upstream {
		return nil
	}
	return p.proxy.Update(&toxiproxy.Proxy{Listen: p.proxy.Listen, Upstream: upstream, Enabled: true})
}

// toxic is one of toxiproxy's.
type toxic struct {
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Toxicity   float64        `json:"toxicity"`
	Attributes map[string]int `json:"attributes"`
}

const upstream, downstream = "upstream", "downstream"

func toxics(f Fault) []toxic {
	switch n := f.Strength; f.Kind {
	case Cut:
		return []toxic{{"reset_peer", upstream, 1, map[string]int{"timeout": 5 * n}}}
	case AnswerLost:
		return []toxic{{"limit_data", downstream, 1, map[string]int{"bytes": 40 * n}}}
	case BlackHole:
		return []toxic{{"timeout", upstream, 1, nil}, {"timeout", downstream, 1, nil}}
	case Slow:
		return []toxic{
			{"latency", downstream, 1, map[string]int{"latency": 10 * n, "jitter": 5 * n}},
			{"bandwidth", upstream, 1, map[string]int{"rate": 1 + n/4}},
		}
	default:
		return nil
	}
}

func (p *Path) poison(f Fault) error {
	for _, t := range toxics(f) {
		if _, err := p.proxy.Toxics.AddToxicJson(bytes.NewReader(lab.Must(json.Marshal(t)))); err != nil {
			return fmt.Errorf("%s: %w", t.Type, err)
		}
	}
	return nil
}

// answers stands in for a control plane that accepts no event.
type answers struct {
	mu       sync.Mutex
	fault    Fault
	released chan struct{}
}

func newAnswers() *answers { return &answers{released: make(chan struct{})} }

func (a *answers) set(f Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault, a.released = f, make(chan struct{})
}

// release ends the requests that hang.
func (a *answers) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.released:
	default:
		close(a.released)
	}
}

func (a *answers) now() (Fault, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fault, a.released
}

// ServeHTTP answers according to the current fault.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, released := a.now()
	switch fault.Kind {
	case Hanging:
		select {
		case <-released:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case TooMany:
		w.Header().Set("Retry-After", strconv.Itoa(1+fault.Strength%3))
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		if fault.Strength%2 == 0 {
			w.Header().Set("Retry-After", strconv.Itoa(1+fault.Strength%3))
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}
