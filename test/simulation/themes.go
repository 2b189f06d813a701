package simulation

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// theme adds an outage with a burst of writes to four plans of ten, and a second fault in the middle of it, when
// events are pending.
func (d dice) theme(p *Plan) {
	if !d.chance(0.4) {
		return
	}
	outage := Fault{
		Kind: []FaultKind{LinksSilent, LinksRefused, VerifierBroken, AnswersLost, SenderForbidden}[d.IntN(5)],
		At:   d.between(time.Minute, p.Length), For: d.between(5*time.Second, 40*time.Second), Runtime: d.IntN(len(p.Runtimes)),
	}
	switch d.weighted(4, 1, 1) {
	case 0:
		d.complicate(p, outage)
	case 1:
		outage = d.drop(p, outage)
	case 2:
		d.flood(p, outage)
	}
	p.Faults = append(p.Faults, outage)
	d.burst(p, outage)
}

// flood writes more objects in an outage than fit into one batch.
func (d dice) flood(p *Plan, outage Fault) {
	const objects, padding = 450, 120
	r := &p.Runtimes[outage.Runtime]
	r.Contract, r.Objects, r.MaxKeys, p.Padding = contract.V3, objects, 0, padding
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind == GatewayRefusesV3 })
	for i := range objects {
		at := d.between(outage.At, outage.At+outage.For)
		p.Writes = append(p.Writes, Write{At: at, Runtime: outage.Runtime, Object: i, Kind: Update, Delay: time.Millisecond})
	}
}

// drop makes a gateway acknowledge events and forward none, for longer than resends take, and too short for a
// stale runtime. Only the numbers show the loss.
func (d dice) drop(p *Plan, outage Fault) Fault {
	p.Gateway = true
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind == GatewayRefusesV3 || f.Kind == GatewayStatus })
	for i := range p.Runtimes {
		p.Runtimes[i].Contract, p.Runtimes[i].Fallback = contract.V3, false
	}
	outage.Kind, outage.For = GatewayDrops, d.between(42*time.Second, 50*time.Second)
	return outage
}

// burst draws writes in an outage.
func (d dice) burst(p *Plan, outage Fault) {
	length := outage.For
	if outage.Kind == GatewayDrops {
		length = time.Second
	}
	for range 3 + d.IntN(8) {
		at := d.between(outage.At, outage.At+length)
		p.Writes = append(p.Writes, d.write(p, at, outage.Runtime))
	}
}

func (d dice) complicate(p *Plan, outage Fault) {
	r := &p.Runtimes[outage.Runtime]
	middle := outage.At + time.Duration(d.Float64()*float64(outage.For))
	switch d.IntN(5) {
	case 0:
		p.Faults = append(p.Faults, Fault{Kind: AgentKilled, At: middle, For: d.length(), Runtime: outage.Runtime})
	case 1:
		p.Faults = append(p.Faults, Fault{Kind: OperatorKilled, At: middle, For: d.length(), Index: d.IntN(p.Operators)})
	case 2:
		d.lose(p, r, outage.Runtime, middle)
	default:
		r.MaxKeys, r.Objects = 2+d.IntN(4), 6
		p.Managers = []core.Manager{"alpha", "beta"}
	}
}

// lose kills one of two agents for ever, with its pending events.
func (d dice) lose(p *Plan, r *RuntimePlan, runtime int, at time.Duration) {
	r.Contract, r.Agents = contract.V3, 2
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool {
		return f.Kind == GatewayRefusesV3 || f.Kind == GatewayStatus || f.Kind == AgentPaused
	})
	if !p.hasAny(AgentGone) {
		p.Faults = append(p.Faults, Fault{Kind: AgentGone, At: at, Runtime: runtime})
	}
}
