package loss

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// action is the beginning or the end of a fault.
type action struct {
	at    time.Duration
	fault Fault
	do    func(Fault)
}

// play makes the faults of a schedule, and returns when they are over and everything runs again,
// with the times of both.
func (s *scene) play(schedule Schedule) (began, ended time.Duration) {
	s.t.Helper()
	var actions []action
	for _, f := range schedule.Faults {
		actions = append(actions, action{f.Start, f, s.begin}, action{f.Start + f.Duration, f, s.end})
	}
	slices.SortStableFunc(actions, func(a, b action) int { return int(a.at - b.at) })
	began = record.Now()
	for _, a := range actions {
		s.wait(began + a.at)
		a.do(a.fault)
	}
	s.wait(began + schedule.Duration)
	return began, record.Now()
}

// wait reads the records of the operator until that time.
func (s *scene) wait(until time.Duration) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for left := until - record.Now(); left > 0; left = until - record.Now() {
		select {
		case <-tick.C:
			s.read()
		case <-time.After(left):
		}
	}
}

func (s *scene) begin(f Fault) {
	s.t.Helper()
	switch f.Kind {
	case AgentKilled:
		if one := s.senders[f.Replica]; one.Running() {
			one.Kill()
		}
	case ReplicaLost:
		s.lose(s.senders[f.Replica])
	case OperatorKilled:
		s.operators[0].Kill()
	case LeaderKilled:
		s.killLeader()
	case WebhookRemoved:
		s.unregister()
	case WatchLost:
		s.loseWatch(f)
	case WebhooksChanged:
		s.changeWebhooks(f)
	case BrokerKilled:
		s.brokers[f.Strength%len(s.brokers)].Kill()
	case OperatorCut:
		s.cable.Refuse()
	default:
		lab.NoError(s.t, s.path.Break(f))
	}
}

// lose kills a replica for good. The one that was lost before is started again, so that one runs.
func (s *scene) lose(one *sender) {
	s.t.Helper()
	if s.lost != nil {
		s.lost.Launch()
	}
	s.lost = one
	if one.Running() {
		one.Kill()
	}
}

func (s *scene) end(f Fault) {
	s.t.Helper()
	switch f.Kind {
	case AgentKilled:
		if one := s.senders[f.Replica]; one != s.lost {
			one.Launch()
		}
	case ReplicaLost, LeaderKilled: // It is over.
	case OperatorKilled:
		s.operators[0].Launch()
	case WebhookRemoved:
		s.register()
	case WebhooksChanged:
		s.awaitWebhooks()
	case WatchLost: // Frozen and held connections stay so, until the agents give them up.
		s.gate.Hold(false)
		lab.NoError(s.t, s.gate.Open())
	case BrokerKilled:
		s.brokers[f.Strength%len(s.brokers)].Launch()
	case OperatorCut:
		lab.NoError(s.t, s.cable.Open())
	default:
		lab.NoError(s.t, s.path.Mend())
	}
}

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
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	via := lab.Address(lab.FreePort(t))
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
