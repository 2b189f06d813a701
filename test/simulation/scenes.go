package simulation

import (
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// scene replaces some plans by a short one with a single runtime. Little else happens there, so that
// no resync for another reason makes up for a mechanism that fails.
func (d dice) scene(p *Plan) {
	if !d.chance(0.4) {
		return
	}

	scenes := []func(*Plan){
		d.crowdedOut, d.fairShare, d.refusedResync, d.blip, d.siege, d.inventedFirst, d.lostReplica, d.twins, d.quiet, d.unhooked,
		d.foreign, d.downgrade, d.wrongPaths, d.rotation, d.expiry, d.limited, d.paused, d.repeated, d.restarted, d.scaledDown,
		d.unreadable, d.bodyLimit, d.told, d.newLife, d.silentLoss, d.learner, d.lied, d.restarted, d.fullRoom, d.panicking,
	}

	d.stage(p)
	scenes[d.IntN(len(scenes))](p)
}

// stage clears a plan for a scene.
func (d dice) stage(p *Plan) {
	r := d.runtime(0)
	r.Fallback, r.MaxKeys, r.Agents, r.Objects = false, 0, 1, 6
	*p = Plan{Seed: p.Seed, Length: 5 * time.Minute, Operators: 1, Managers: []core.Manager{"alpha"}, Runtimes: []RuntimePlan{r}}
}

// older draws a contract without numbers, so that the control plane finds no gap.
func (d dice) older() contract.Version {
	return []contract.Version{contract.V2, contract.V1}[d.weighted(3, 1)]
}

// update adds a write that is committed at once.
func (p *Plan) update(object int, at time.Duration) {
	p.Writes = append(p.Writes, Write{At: at, Object: object, Kind: Update, Delay: time.Millisecond})
}

// outage draws a time in which the control plane is out of reach, too short to be noticed as silence.
func (d dice) outage(kind FaultKind) Fault {
	return Fault{Kind: kind, At: d.between(2*time.Minute, 3*time.Minute), For: d.between(20*time.Second, 40*time.Second)}
}

// crowdedOut fills the memory of an agent with objects of alpha within an outage. An object of beta then takes
// the place of one of them.
func (d dice) crowdedOut(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.MaxKeys, r.Objects, p.Managers = contract.V2, 3+d.IntN(4), 24, []core.Manager{"alpha", "beta"}
	p.Faults = []Fault{outage}

	for i := range r.MaxKeys {
		p.update(ofAlpha(i), d.between(outage.At, outage.At+5*time.Second))
	}

	p.update(ofBeta(0), outage.At+6*time.Second)
}

// ofAlpha and ofBeta return objects that one manager has for itself.
func ofAlpha(i int) int { return 3*i + 1 }
func ofBeta(i int) int  { return 3*i + 2 }

// fairShare lets a manager without an operator fill the memory of an agent. Another one with few objects must not
// feel it.
func (d dice) fairShare(p *Plan) {
	const keys = 9

	r := &p.Runtimes[0]
	r.MaxKeys, r.Objects = keys, 2*keys
	p.Faults = []Fault{{Kind: ManagerUnknown, At: time.Second}}

	for i := range r.Objects {
		at := d.between(time.Minute, 2*time.Minute)
		p.Writes = append(p.Writes, Write{At: at, Object: i, Kind: Elsewhere, Delay: time.Millisecond})
	}

	at := d.between(3*time.Minute, 4*time.Minute)
	for i := range 4 {
		p.update(i%2, at+time.Duration(i)*d.between(500*time.Millisecond, time.Second))
	}
}

// refusedResync makes a gateway refuse everything for good, also the resync that stands in.
func (d dice) refusedResync(p *Plan) {
	p.Runtimes[0].Contract, p.Gateway = d.older(), true
	refused := d.outage(GatewayStatus)
	refused.Value = []int{400, 413, 415}[d.IntN(3)]
	p.Faults = []Fault{refused}

	p.update(0, time.Minute)
	p.update(0, d.between(refused.At, refused.At+refused.For))
}

// blip is an outage of a moment, in which many single events fail side by side.
func (d dice) blip(p *Plan) {
	p.Runtimes[0].Contract, p.Runtimes[0].Objects = contract.V2, 9
	blip := Fault{Kind: LinksRefused, At: d.between(2*time.Minute, 4*time.Minute), For: d.between(300*time.Millisecond, time.Second)}
	p.Faults = []Fault{blip}

	for i := range 9 {
		p.update(i, blip.At+10*time.Millisecond)
	}
}

// siege lets strangers announce large reviews, while the API server sends some that are neither small nor large.
func (d dice) siege(p *Plan) {
	p.Runtimes[0].Bulk = 20 << 10
	siege := Fault{Kind: StrangersSilent, At: d.between(time.Minute, 3*time.Minute), For: d.between(10*time.Second, time.Minute)}
	p.Faults = []Fault{siege}

	for i := range 5 {
		p.update(i, d.between(siege.At, siege.At+siege.For))
	}
}

// fullRoom lets strangers take all the memory for reviews, so that a resync stands in for each review of the API
// server.
func (d dice) fullRoom(p *Plan) {
	d.siege(p)
	p.Runtimes[0].Contract, p.Faults[0].Kind = []contract.Version{contract.V2, contract.V3}[d.IntN(2)], StrangersLarge
}

// panicking writes an object on which code of the operator panics, together with another one.
func (d dice) panicking(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Faults = []Fault{{Kind: EventPanics, Value: d.IntN(inVerifier + 1)}}

	at := d.between(2*time.Minute, 4*time.Minute)
	p.update(0, at)
	p.update(1, at)
}

// inventedFirst shows an agent many managers that do not exist, before it learns those that do.
func (d dice) inventedFirst(p *Plan) {
	p.Runtimes[0].Contract, p.Runtimes[0].Learns = contract.V2, true
	p.Faults = []Fault{{Kind: ManagersInvented, At: d.between(time.Second, 20*time.Second)}}
	p.update(0, d.between(time.Minute, 4*time.Minute))
}

// lostReplica takes one of two agents away within an outage, with events of the other one's objects.
func (d dice) lostReplica(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage([]FaultKind{LinksRefused, LinksSilent, SenderForbidden, AnswersLost}[d.IntN(4)])
	r.Contract, r.Agents, r.Objects = contract.V3, 2, 6
	gone := Fault{Kind: AgentGone, At: outage.At + outage.For/2}
	p.Faults = []Fault{outage, gone}

	for i := range r.Objects {
		p.update(i, d.between(outage.At, gone.At))
		p.Writes[i].Delay = d.commit()
	}
}

// commit draws the time from a review to its commit. One in three is late.
func (d dice) commit() time.Duration {
	if d.chance(1. / 3) {
		return d.between(10*time.Second, 29*time.Second)
	}

	return time.Millisecond
}

// silentLoss is lostReplica in an outage that is noticed as silence of the whole runtime.
func (d dice) silentLoss(p *Plan) {
	d.lostReplica(p)

	outage, gone := &p.Faults[0], &p.Faults[1]
	outage.Kind, outage.For, gone.At = LinksRefused, d.between(80*time.Second, 110*time.Second), outage.At+45*time.Second
}

// restarted ends agents with nothing to send, and starts others soon. No replica is lost.
func (d dice) restarted(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract, r.Agents, p.Tidy = contract.V3, 1+d.IntN(2), true
	p.Faults = []Fault{{
		Kind: []FaultKind{AgentReplaced, AgentKilled}[d.IntN(2)], At: d.between(2*time.Minute, 3*time.Minute),
		For: d.between(time.Second, 20*time.Second), Index: d.IntN(r.Agents),
	}}

	p.update(0, time.Minute)
}

// scaledDown ends one of two agents in good order, while writes that it has reported early are not committed yet.
func (d dice) scaledDown(p *Plan) {
	r, at := &p.Runtimes[0], d.between(2*time.Minute, 3*time.Minute)
	r.Contract, r.Agents = contract.V3, 2
	p.Faults = []Fault{{Kind: AgentLeft, At: at}}

	for i := range r.Objects {
		p.Writes = append(p.Writes, Write{
			At: at - d.between(4*time.Second, 5*time.Second), Object: i, Kind: Update, Delay: d.between(10*time.Second, 29*time.Second),
		})
	}
}

// unreadable has many reviews that cannot be parsed, each of which asks for a resync.
func (d dice) unreadable(p *Plan) {
	p.Runtimes[0].Contract = []contract.Version{contract.V2, contract.V3}[d.IntN(2)]
	at := d.between(90*time.Second, 4*time.Minute)

	for i := range 60 {
		p.Writes = append(p.Writes, Write{At: at + time.Duration(i)*250*time.Millisecond, Object: i % 6, Kind: Unreadable, Delay: time.Millisecond})
	}
}

// bodyLimit is a gateway that never forwards a large body.
func (d dice) bodyLimit(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.Objects, r.ManyCAs, p.Gateway = contract.V3, 60, false, true // A heartbeat with many CAs would not pass.
	p.Faults = []Fault{outage, {Kind: GatewayLimits, Value: 4_000 + d.IntN(10_000)}}

	for i := range r.Objects {
		p.update(i, d.between(outage.At, outage.At+outage.For))
	}
}

// told is a gateway that asks for a wait.
func (d dice) told(p *Plan) {
	p.Runtimes[0].Contract, p.Gateway = contract.V3, true
	p.Faults = []Fault{{
		Kind: GatewayWaits, At: d.between(time.Minute, 2*time.Minute), For: d.between(time.Minute, 2*time.Minute),
		Value: []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[d.IntN(2)],
	}}

	for i := range 4 {
		p.update(i, d.between(p.Faults[0].At, p.Faults[0].At+p.Faults[0].For))
	}
}

// newLife kills an agent with events that it has not sent. Its successor asks for no resync, and the handler of the
// one that the control plane asks for may hang.
func (d dice) newLife(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.Lazy = contract.V3, true
	killed := Fault{Kind: AgentKilled, At: outage.At + outage.For/2, For: outage.For}
	p.Faults = []Fault{outage, killed}

	if d.chance(0.5) {
		p.Faults = append(p.Faults, Fault{Kind: MapHangs, At: killed.At, For: killed.For + d.between(10*time.Second, 20*time.Second)})
	}

	for i := range 2 {
		p.update(i, d.between(outage.At, killed.At))
		p.Writes[i].Delay = d.commit()
	}
}

// learner kills an agent with events that it has not sent. Its successor knows no manager, or no owner, before one
// more write.
func (d dice) learner(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.Learns = d.older(), true
	p.Faults = []Fault{outage, {Kind: AgentKilled, At: outage.At + outage.For/2, For: time.Second}}

	p.update(1, d.between(outage.At, outage.At+outage.For/2-time.Second))
}

// lied is a gateway that acknowledges an event and its resends, and forwards none. It is too short to be noticed as
// silence.
func (d dice) lied(p *Plan) {
	p.Runtimes[0].Contract, p.Gateway = contract.V3, true
	lies := Fault{Kind: GatewayLies, At: d.between(2*time.Minute, 3*time.Minute), For: d.between(36*time.Second, 40*time.Second)}
	p.Faults = []Fault{lies}

	p.update(0, lies.At+d.between(0, 500*time.Millisecond))
}

// twins writes the same object twice, so that the second event comes before the first one has settled.
func (d dice) twins(p *Plan) {
	for range 4 {
		at, gap := d.between(2*time.Minute, 5*time.Minute), d.between(45*time.Millisecond, 95*time.Millisecond)
		for _, at := range []time.Duration{at, at + gap} {
			p.Writes = append(p.Writes, Write{At: at, Object: d.IntN(2), Kind: Update, Delay: d.between(30*time.Millisecond, 44*time.Millisecond)})
		}
		p.Writes[len(p.Writes)-1].Object = p.Writes[len(p.Writes)-2].Object
	}
}

// quiet has writes to object 0 that change nothing.
func (d dice) quiet(p *Plan) {
	for range 4 {
		kind := []WriteKind{DryRun, Touch}[d.IntN(2)]
		p.Writes = append(p.Writes, Write{At: d.between(time.Minute, p.Length), Kind: kind, Delay: time.Millisecond})
		p.update(1+d.IntN(5), d.between(time.Minute, p.Length))
	}
}

// unhooked removes the webhook for longer than a canary may miss, with writes that nothing reviews.
func (d dice) unhooked(p *Plan) {
	r := &p.Runtimes[0]
	r.Canary, r.Contract = true, []contract.Version{contract.V2, contract.V3}[d.IntN(2)]
	removed := Fault{Kind: WebhookRemoved, At: d.between(time.Minute, 2*time.Minute), For: d.between(32*time.Second, 2*time.Minute)}
	p.Faults = []Fault{removed}

	p.update(0, d.between(removed.At, removed.At+removed.For))
	p.update(1, d.between(removed.At, removed.At+removed.For))
}

// foreign is a gateway that refuses contract v3 in words that are not ours.
func (d dice) foreign(p *Plan) {
	p.Runtimes[0].Contract, p.Runtimes[0].Fallback, p.Gateway = contract.V3, true, true
	p.Faults = []Fault{{Kind: GatewayForeign, At: d.between(0, 3*time.Minute)}}

	for i := range 4 {
		p.update(i, d.between(3*time.Minute, p.Length))
	}
}

// downgrade replaces an agent of contract v3 by one of contract v1, after the runtime was silent. It resyncs one
// owner, and does not know the other one.
func (d dice) downgrade(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract, r.Owners, r.Objects = contract.V3, 2, 4
	outage := Fault{Kind: LinksRefused, At: d.between(time.Minute, 2*time.Minute), For: d.between(70*time.Second, 90*time.Second)}
	p.Faults = []Fault{outage, {Kind: AgentDowngraded, At: outage.At + outage.For/2, For: outage.For / 4}}

	p.update(1, outage.At+outage.For/4)
	p.update(0, outage.At+outage.For+d.between(time.Second, 20*time.Second))
}

// wrongPaths is a runtime that asks for pages that do not exist, as fast as it can.
func (d dice) wrongPaths(p *Plan) {
	p.Rate = 20 + d.IntN(30)
	p.Faults = []Fault{{Kind: PathsWrong, At: d.between(time.Minute, 4*time.Minute), For: 2 * time.Second}}
	p.update(0, d.between(time.Minute, p.Length))
}

// rotation renews all key material while events flow.
func (d dice) rotation(p *Plan) {
	p.Operators, p.Gateway, p.Runtimes[0].Agents = 1+d.IntN(2), d.chance(0.3), 1+d.IntN(2)
	p.Faults = []Fault{d.rotate(p)}

	for range 12 {
		p.update(d.IntN(6), d.between(90*time.Second, p.Length))
	}
}

// expiry lets the certificate of a runtime expire before it is renewed.
func (d dice) expiry(p *Plan) {
	p.Gateway = d.chance(0.3)
	expired := d.outage(CertificateExpired)
	expired.At = expired.At.Truncate(time.Second)
	p.Faults = []Fault{expired}

	for i := range 3 {
		p.update(i, d.between(expired.At, expired.At+expired.For))
	}
}

// limited has more events than the share of a runtime.
func (d dice) limited(p *Plan) {
	r := &p.Runtimes[0]
	p.Rate, r.Objects = 5+d.IntN(20), 60
	at := d.between(time.Minute, 4*time.Minute)

	for i := range r.Objects {
		p.update(i, d.between(at, at+5*time.Second))
	}
}

// paused stops an agent, with writes before, during and after the pause.
func (d dice) paused(p *Plan) {
	r := &p.Runtimes[0]
	r.Agents = 1 + d.IntN(2)
	pause := Fault{Kind: AgentPaused, At: d.between(2*time.Minute, 3*time.Minute), For: d.length(), Index: d.IntN(r.Agents)}
	p.Faults = []Fault{pause}

	for range 6 {
		p.update(d.IntN(6), d.between(pause.At-time.Second, pause.At+pause.For+time.Second))
	}
}

// repeated is a gateway that forwards each request a second time, when the first one has been answered long ago.
func (d dice) repeated(p *Plan) {
	p.Gateway, p.Operators = true, 1+d.IntN(2)
	repeats := Fault{Kind: GatewayRepeats, At: d.between(0, 2*time.Minute), For: d.between(time.Minute, 3*time.Minute), Value: d.IntN(30_000)}
	p.Faults = []Fault{repeats, {
		Kind: []FaultKind{AgentReplaced, AgentKilled}[d.IntN(2)], At: repeats.At + repeats.For/2, For: d.between(time.Second, 20*time.Second),
	}}

	for range 6 {
		p.update(d.IntN(6), d.between(repeats.At, repeats.At+repeats.For))
	}
}

// rotate draws a rotation. Its value has the steps before which an agent is given broken files.
func (d dice) rotate(p *Plan) Fault {
	return Fault{
		Kind: KeysRotated, At: d.between(time.Minute, p.Length/2), For: d.between(time.Minute, 2*time.Minute), Runtime: d.IntN(len(p.Runtimes)),
		Value: d.IntN(1 << (rotationSteps - 1)), // Nothing would mend what breaks before the last step.
	}
}
