package loss

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Path leads from the agents to the operator, or to a stand-in that accepts no event. A relay makes the
// faults of the port and of connections. Behind it, toxiproxy makes the faults within a connection.
type Path struct {
	relay    *lab.Relay
	proxy    *toxiproxy.Proxy
	operator string
	front    *lab.Front
	held     bool
}

// NewPath opens a way to the operator, until the test ends. Its addresses are left and taken again.
func NewPath(t testing.TB, pki *lab.PKI, operator string) *Path {
	t.Helper()
	server, via := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), lab.Address(lab.FreePort(t))
	p := &Path{
		proxy:    toxiproxy.NewProxy(server, "control plane", via, operator),
		operator: operator,
		front:    lab.StartFront(t, pki, nil),
	}
	lab.NoError(t, p.proxy.Start())
	t.Cleanup(p.proxy.Stop)
	p.relay = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(t)), 0, p.proxy.Listen))
	t.Cleanup(p.relay.Close)
	return p
}

// Addr is where agents find the control plane.
func (p *Path) Addr() string { return p.relay.Addr() }

// Break begins a fault.
func (p *Path) Break(f Fault) error {
	switch wait := 1 + f.Strength%3; f.Kind {
	case lab.HalfOpen:
		p.relay.Freeze()
	case lab.Refusing:
		p.relay.Refuse()
	case lab.NoHandshake:
		p.held = true
		p.relay.Hold(true)
		p.relay.Cut()
	case lab.Unavailable:
		p.front.Set(f.Kind, wait*(1-f.Strength%2))
		return p.leadTo(p.front.Addr)
	case lab.TooFast, lab.Forbidden, lab.Hanging, lab.OtherCA, lab.OtherName:
		p.front.Set(f.Kind, wait)
		return p.leadTo(p.front.Addr)
	default:
		return p.poison(f)
	}
	return nil
}

// Mend ends a fault and its effects.
func (p *Path) Mend() error {
	p.proxy.Toxics.ResetToxics(context.Background())
	if err := p.leadTo(p.operator); err != nil {
		return err
	}
	p.relay.Hold(false)
	if p.held {
		p.relay.Cut()
	}
	p.held = false
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
