package simulation

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// TestFound runs plans that failed once, as small as they could be made.
func TestFound(t *testing.T) {
	keys := testPKI(t)
	for name, plan := range found() {
		t.Run(name, func(t *testing.T) { play(t, plan, keys) })
	}
}

func found() map[string]*Plan {
	return map[string]*Plan{
		"resyncs come beside a loud runtime": beside(),
		"an event of contract v1 that is given up has a stand-in": small(contract.V1, false,
			[]Write{
				{At: 2 * time.Minute, Kind: Update, Delay: time.Millisecond},
				{At: 4 * time.Minute, Kind: Update, Delay: time.Millisecond},
			},
			[]Fault{{Kind: EventRefused}}),
		"a stalled log sink does not hold up the API server": small(contract.V2, false,
			[]Write{{At: 2 * time.Minute, Kind: BadOwner, Delay: time.Millisecond}},
			[]Fault{{Kind: SinkStalled, At: time.Minute, For: 2 * time.Minute}}),
		"a resync that a gateway refuses with 413 is kept": small(contract.V2, true,
			[]Write{{At: 2 * time.Minute, Kind: Update, Delay: time.Millisecond}},
			[]Fault{{Kind: GatewayStatus, At: time.Minute, For: 3 * time.Minute, Value: 413}}),
		"a proof from before a silence does not make a runtime fresh": with(small(contract.V3, true, nil,
			[]Fault{
				{Kind: WebhookRemoved, At: 11 * time.Second, For: 10 * time.Minute},
				{Kind: GatewayStatus, At: 29 * time.Second, For: 267 * time.Second, Value: 413},
			}), withCanary),
		"heartbeats do not follow each other where connections break": with(small(contract.V3, false, nil,
			[]Fault{{Kind: LinksCut, At: time.Minute, For: 5 * time.Minute, Value: 5300}}), threeReplicas),
		"an event does not wait for the next attempt of a refused heartbeat": with(small(contract.V3, true,
			[]Write{{At: 295 * time.Second, Kind: Update, Delay: time.Millisecond}},
			[]Fault{{Kind: GatewayRefusesV3, At: 50 * time.Second}}), fallback),
		"a write that a lost replica reviewed is looked at after its late commit": with(small(contract.V3, false,
			[]Write{
				{At: 160 * time.Second, Kind: Update, Delay: 29 * time.Second},
				{At: 161 * time.Second, Object: 1, Kind: Update, Delay: 29 * time.Second},
			},
			[]Fault{
				{Kind: SenderForbidden, At: 118 * time.Second, For: 48 * time.Second},
				{Kind: AgentGone, At: 163 * time.Second},
			}), twoAgents),
		"a write is looked at after its late commit if its replica ends before a new operator hears it": with(small(contract.V3, false,
			[]Write{
				{At: 158 * time.Second, Kind: Update, Delay: 29 * time.Second},
				{At: 159 * time.Second, Object: 1, Kind: Update, Delay: 29 * time.Second},
			},
			[]Fault{
				{Kind: LinksSilent, At: 138 * time.Second, For: 24 * time.Second},
				{Kind: OperatorKilled, At: 140 * time.Second, For: time.Second},
				{Kind: AgentGone, At: 161 * time.Second},
			}), twoAgents),
		"messages that a panic holds up show no other replica": with(small(contract.V3, false, nil,
			[]Fault{{Kind: EventPanics, Index: 1, Value: inVerifier}, {Kind: LeaderChanged, At: 2 * time.Minute, For: 3 * time.Minute}},
		), func(p *Plan, r *RuntimePlan) {
			stored(p, r)
			for i := range 20 {
				p.update(i%r.Objects, 3*time.Minute+time.Duration(i)*4*time.Second)
			}
		}),
		"a message that comes again is no sign of life": with(small(contract.V3, false,
			[]Write{{At: 2 * time.Minute, Kind: Update, Delay: time.Millisecond}},
			[]Fault{
				{Kind: EventPanics},
				{Kind: MapHangs, At: 110 * time.Second, For: 20 * time.Second},
				{Kind: AgentKilled, At: 125 * time.Second, For: 6 * time.Minute},
			}), stored),
		"a canary is lost and found again while one of two agents is paused": with(small(contract.V1, false,
			[]Write{
				{At: 2*time.Minute + 52*time.Second, Kind: Update, Delay: time.Millisecond},
				{At: 5*time.Minute + 52*time.Second, Object: 1, Kind: Update, Delay: time.Millisecond},
			},
			[]Fault{{Kind: AgentPaused, At: 2*time.Minute + 53*time.Second, For: 20 * time.Minute}},
		), func(p *Plan, r *RuntimePlan) {
			twoAgents(p, r)
			withCanary(p, r)
		}),
		"a replaced agent has 30 s to find that the API server does not call it": with(small(contract.V3, false, nil,
			[]Fault{
				{Kind: AgentReplaced, At: 5 * time.Second, For: 198 * time.Second},
				{Kind: WebhookRemoved, At: 8 * time.Second, For: 13 * time.Minute},
			}), withCanary),
	}
}

// beside is the scene of a loud runtime.
func beside() *Plan {
	d := newDice(1)
	p := &Plan{Seed: 1}
	d.stage(p)
	d.loud(p)
	p.sort()
	return p
}

// with changes a plan.
func with(plan *Plan, change func(p *Plan, r *RuntimePlan)) *Plan {
	change(plan, &plan.Runtimes[0])
	return plan
}

func fallback(_ *Plan, r *RuntimePlan)      { r.Fallback = true }
func twoAgents(_ *Plan, r *RuntimePlan)     { r.Agents, r.Objects = 2, 2 }
func withCanary(_ *Plan, r *RuntimePlan)    { r.Canary = true }
func stored(p *Plan, r *RuntimePlan)        { p.NATS, r.Canary, r.Objects = true, true, 2 }
func threeReplicas(p *Plan, _ *RuntimePlan) { p.Operators = 3 }

// small is a plan with one runtime and one object.
func small(version contract.Version, gateway bool, writes []Write, faults []Fault) *Plan {
	return &Plan{
		Length: 5 * time.Minute, Operators: 1, Gateway: gateway, Managers: []core.Manager{"alpha"}, Writes: writes, Faults: faults,
		Runtimes: []RuntimePlan{{
			Name: "skr-0", Contract: version, Protocol: "h2", Agents: 1, Objects: 1,
		}},
	}
}
