package simulation

import (
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// scene replaces four plans of ten by a scripted one with a single runtime. It has few faults, so that no resync
// for another reason hides a broken mechanism.
func (d dice) scene(p *Plan) {
	if !d.chance(0.4) {
		return
	}
	scenes := []func(*Plan){
		d.fullOutbox, d.fairShare, d.refusedResync, d.shortOutage, d.silentStrangers, d.inventedManagers, d.lostReplica, d.overlappingWrites, d.unchangedWrites, d.removedWebhook,
		d.refusedV3, d.downgrade, d.wrongPaths, d.rotation, d.expiry, d.limited, d.paused, d.repeated, d.restarted, d.scaledDown,
		d.unreadable, d.bodyLimit, d.told, d.restartWithPending, d.silentLoss, d.restartOfLearner, d.droppedByGateway, d.restarted, d.fullReviewMemory, d.panicking,
		d.brokenConnections, d.lostHeartbeats, d.loud, d.loud, d.lostPath, d.lostPath, d.active, d.active, d.activeOnStream, d.keptByStream, d.endedWhileAway, d.handover,
	}
	d.stage(p)
	scenes[d.IntN(len(scenes))](p)
}

// stage empties a plan for a scene.
func (d dice) stage(p *Plan) {
	r := d.runtime(0)
	r.Fallback = false
	r.MaxKeys = 0
	r.Agents = 1
	r.Objects = 6
	*p = Plan{Seed: p.Seed, Length: 5 * time.Minute, Operators: 1, Managers: []core.Manager{"alpha"}, Runtimes: []RuntimePlan{r}}
}

// older draws a contract without numbers.
func (d dice) older() contract.Version {
	return []contract.Version{contract.V2, contract.V1}[d.weighted(3, 1)]
}

// update adds a write with a prompt commit.
func (p *Plan) update(object int, at time.Duration) {
	p.Writes = append(p.Writes, Write{At: at, Object: object, Kind: Update, Delay: time.Millisecond})
}

// updates adds a write of each of the first n objects between two times.
func (d dice) updates(p *Plan, n int, from, to time.Duration) {
	for i := range n {
		p.update(i, d.between(from, to))
	}
}

// commits is the same, and some of the commits are late.
func (d dice) commits(p *Plan, n int, from, to time.Duration) {
	for i := range n {
		p.update(i, d.between(from, to))
		p.Writes[i].Delay = d.commit()
	}
}

// someUpdates adds n writes of random objects between two times.
func (d dice) someUpdates(p *Plan, n int, from, to time.Duration) {
	for range n {
		p.update(d.IntN(6), d.between(from, to))
	}
}

// outage draws an outage that is too short for a stale runtime.
func (d dice) outage(kind FaultKind) Fault {
	return Fault{Kind: kind, At: d.between(2*time.Minute, 3*time.Minute), For: d.between(20*time.Second, 40*time.Second)}
}

// fullOutbox fills the outbox with objects of alpha in an outage. An object of beta then evicts one of them.
func (d dice) fullOutbox(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.MaxKeys, r.Objects, p.Managers = contract.V2, 3+d.IntN(4), 24, []core.Manager{"alpha", "beta"}
	p.Faults = []Fault{outage}
	for i := range r.MaxKeys {
		p.update(ofAlpha(i), d.between(outage.At, outage.At+5*time.Second))
	}
	p.update(ofBeta(0), outage.At+6*time.Second)
}

// ofAlpha and ofBeta return objects that only one manager watches.
func ofAlpha(i int) int { return 3*i + 1 }
func ofBeta(i int) int  { return 3*i + 2 }

// fairShare fills the outbox with events of a manager without an operator. Another manager with few objects must
// not lose events.
func (d dice) fairShare(p *Plan) {
	const keys = 9
	r := &p.Runtimes[0]
	r.MaxKeys = keys
	r.Objects = 2 * keys
	p.Faults = []Fault{{Kind: ManagerUnknown, At: time.Second}}
	for i := range r.Objects {
		at := d.between(time.Minute, 2*time.Minute)
		p.Writes = append(p.Writes, Write{At: at, Object: i, Kind: OtherManager, Delay: time.Millisecond})
	}
	at := d.between(3*time.Minute, 4*time.Minute)
	for i := range 4 {
		p.update(i%2, at+time.Duration(i)*d.between(500*time.Millisecond, time.Second))
	}
}

// refusedResync has a gateway that refuses all requests permanently, including the resync that
// replaces events.
func (d dice) refusedResync(p *Plan) {
	p.Runtimes[0].Contract = d.older()
	p.Gateway = true
	refused := d.outage(GatewayStatus)
	refused.Value = []int{400, 413, 415}[d.IntN(3)]
	p.Faults = []Fault{refused}
	p.update(0, time.Minute)
	p.update(0, d.between(refused.At, refused.At+refused.For))
}

// shortOutage is an outage of less than a second, in which many single events fail concurrently.
func (d dice) shortOutage(p *Plan) {
	p.Runtimes[0].Contract = contract.V2
	p.Runtimes[0].Objects = 9
	shortOutage := Fault{Kind: LinksRefused, At: d.between(2*time.Minute, 4*time.Minute), For: d.between(300*time.Millisecond, time.Second)}
	p.Faults = []Fault{shortOutage}
	for i := range 9 {
		p.update(i, shortOutage.At+10*time.Millisecond)
	}
}

// silentStrangers has strangers with unfinished large reviews, and reviews of 20 KiB by the API server.
func (d dice) silentStrangers(p *Plan) {
	p.Runtimes[0].Bulk = 20 << 10
	silentStrangers := Fault{Kind: StrangersSilent, At: d.between(time.Minute, 3*time.Minute), For: d.between(10*time.Second, time.Minute)}
	p.Faults = []Fault{silentStrangers}
	d.updates(p, 5, silentStrangers.At, silentStrangers.At+silentStrangers.For)
}

// fullReviewMemory has strangers that use up the memory for reviews. A resync replaces each review
// of the API server.
func (d dice) fullReviewMemory(p *Plan) {
	d.silentStrangers(p)
	p.Runtimes[0].Contract = []contract.Version{contract.V2, contract.V3}[d.IntN(2)]
	p.Faults[0].Kind = StrangersLarge
}

// panicking has an object for which the operator's code panics, and a second one in the same batch or later.
func (d dice) panicking(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Faults = []Fault{{Kind: EventPanics, Value: d.IntN(inVerifier + 1)}}
	at := d.between(2*time.Minute, 4*time.Minute)
	p.update(0, at)
	p.update(1, at+time.Duration(d.IntN(2))*10*time.Second)
}

// inventedManagers has many unknown managers before the agent learns the real ones.
func (d dice) inventedManagers(p *Plan) {
	p.Runtimes[0].Contract = contract.V2
	p.Runtimes[0].Learns = true
	p.Faults = []Fault{{Kind: ManagersInvented, At: d.between(time.Second, 20*time.Second)}}
	p.update(0, d.between(time.Minute, 4*time.Minute))
}

// lostReplica kills one of two agents for ever in an outage, with its pending events. In half of the plans the operator
// is new and has not heard that agent.
func (d dice) lostReplica(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage([]FaultKind{LinksRefused, LinksSilent, SenderForbidden, AnswersLost}[d.IntN(4)])
	r.Contract = contract.V3
	r.Agents = 2
	r.Objects = 6
	from := outage.At
	gone := Fault{Kind: AgentGone, At: outage.At + outage.For/2}
	p.Faults = []Fault{outage}
	if d.chance(0.5) {
		gone.At = outage.At + outage.For - time.Second
		from = gone.At - 10*time.Second
		p.Faults = append(p.Faults, Fault{Kind: OperatorKilled, At: outage.At + time.Second, For: time.Second})
	}
	p.Faults = append(p.Faults, gone)
	d.commits(p, r.Objects, from, gone.At)
}

// commit draws the time from a review to the commit. One in three is late.
func (d dice) commit() time.Duration {
	if d.chance(1. / 3) {
		return d.between(10*time.Second, 29*time.Second)
	}
	return time.Millisecond
}

// silentLoss kills one of two agents for ever in an outage after which the runtime is stale. In half of the plans no
// handler takes the resyncs of the fleet for a while.
func (d dice) silentLoss(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract = contract.V3
	r.Agents = 2
	outage.For = d.between(80*time.Second, 110*time.Second)
	gone := Fault{Kind: AgentGone, At: outage.At + outage.For - d.between(0, 20*time.Second)}
	p.Faults = []Fault{outage, gone}
	d.commits(p, r.Objects, gone.At-10*time.Second, gone.At)
	if d.chance(0.5) {
		p.Faults = append(p.Faults, Fault{Kind: MapHangs, At: outage.At + outage.For, For: 150 * time.Second})
	}
}

// restarted restarts an agent with nothing pending. No replica is lost.
func (d dice) restarted(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract, r.Agents, p.CleanStops = contract.V3, 1+d.IntN(2), true
	p.Faults = []Fault{{
		Kind: []FaultKind{AgentReplaced, AgentKilled}[d.IntN(2)], At: d.between(2*time.Minute, 3*time.Minute),
		For: d.between(time.Second, 20*time.Second), Index: d.IntN(r.Agents),
	}}
	p.update(0, time.Minute)
}

// scaledDown stops one of two agents in good order, before the late commits of writes that it has reviewed.
func (d dice) scaledDown(p *Plan) {
	r := &p.Runtimes[0]
	at := d.between(2*time.Minute, 3*time.Minute)
	r.Contract = contract.V3
	r.Agents = 2
	p.Faults = []Fault{{Kind: AgentLeft, At: at}}
	for i := range r.Objects {
		p.Writes = append(p.Writes, Write{
			At: at - d.between(4*time.Second, 5*time.Second), Object: i, Kind: Update, Delay: d.between(10*time.Second, 29*time.Second),
		})
	}
}

// unreadable has many reviews that cannot be parsed. Each requests a resync.
func (d dice) unreadable(p *Plan) {
	p.Runtimes[0].Contract = []contract.Version{contract.V2, contract.V3}[d.IntN(2)]
	at := d.between(90*time.Second, 4*time.Minute)
	for i := range 60 {
		p.Writes = append(p.Writes, Write{At: at + time.Duration(i)*250*time.Millisecond, Object: i % 6, Kind: Unreadable, Delay: time.Millisecond})
	}
}

// bodyLimit has a gateway with a body limit.
func (d dice) bodyLimit(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract, r.Objects, r.ManyCAs, p.Gateway = contract.V3, 60, false, true // Heartbeats with many CAs exceed the limit.
	p.Faults = []Fault{outage, {Kind: GatewayLimits, Value: 4_000 + d.IntN(10_000)}}
	d.updates(p, r.Objects, outage.At, outage.At+outage.For)
}

// told has a gateway that answers with 429 or 503 and Retry-After.
func (d dice) told(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Gateway = true
	p.Faults = []Fault{{
		Kind: GatewayRetryAfter, At: d.between(time.Minute, 2*time.Minute), For: d.between(time.Minute, 2*time.Minute),
		Value: []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[d.IntN(2)],
	}}
	d.updates(p, 4, p.Faults[0].At, p.Faults[0].At+p.Faults[0].For)
}

// restartWithPending kills an agent with pending events, and restarts it. The
// handler of the resyncs may hang.
func (d dice) restartWithPending(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract = contract.V3
	killed := Fault{Kind: AgentKilled, At: outage.At + outage.For/2, For: d.between(time.Second, outage.For/2)}
	p.Faults = []Fault{outage, killed}
	if d.chance(0.5) {
		p.Faults = append(p.Faults, Fault{Kind: MapHangs, At: killed.At, For: outage.For + d.between(10*time.Second, 20*time.Second)})
	}
	d.commits(p, 4, killed.At-5*time.Second, killed.At)
}

// restartOfLearner kills an agent with pending events, and restarts it. The new process knows no manager, or no
// owner, before its first review.
func (d dice) restartOfLearner(p *Plan) {
	r, outage := &p.Runtimes[0], d.outage(LinksRefused)
	r.Contract = d.older()
	r.Learns = true
	p.Faults = []Fault{outage, {Kind: AgentKilled, At: outage.At + outage.For/2, For: time.Second}}
	p.update(1, d.between(outage.At, outage.At+outage.For/2-time.Second))
}

// droppedByGateway has a gateway that acknowledges an event and its resends, and forwards none. The runtime does
// not become stale.
func (d dice) droppedByGateway(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Gateway = true
	drops := Fault{Kind: GatewayDrops, At: d.between(2*time.Minute, 3*time.Minute), For: d.between(36*time.Second, 40*time.Second)}
	p.Faults = []Fault{drops}
	p.update(0, drops.At+d.between(0, 500*time.Millisecond))
}

// brokenConnections has connections that break after few requests, without writes.
func (d dice) brokenConnections(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Runtimes[0].Protocol = "h2"
	p.Operators = 3
	p.Faults = []Fault{{Kind: LinksCut, At: time.Minute, For: 5 * time.Minute, Value: 5_200 + d.IntN(400)}}
}

// lostHeartbeats restarts an agent behind a gateway that drops its first heartbeats. Events follow before the next
// one.
func (d dice) lostHeartbeats(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Gateway = true
	drops := Fault{Kind: GatewayDrops, At: d.between(time.Minute, 2*time.Minute), For: d.between(78*time.Second, 80*time.Second)}
	p.Faults = []Fault{drops, {Kind: AgentKilled, At: drops.At + 10*time.Second, For: time.Second}}
	for i := range 20 {
		p.update(i%6, drops.At+drops.For+time.Duration(i)*time.Second)
	}
}

// lostPath ends the connections of a runtime without writes. The agent connects again, unless it is gone or cut off.
func (d dice) lostPath(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract = contract.V3
	r.Canary = true
	r.Rare = true
	p.Length = 14 * time.Minute
	p.Faults = []Fault{{
		Kind: []FaultKind{AgentKilled, LinksSilent, LinksRefused, OperatorKilled}[d.IntN(4)],
		At:   d.between(2*time.Minute, 3*time.Minute), For: []time.Duration{time.Second, 4 * time.Minute}[d.IntN(2)],
	}}
}

// overlappingWrites writes an object twice within the settle time.
func (d dice) overlappingWrites(p *Plan) {
	for range 4 {
		at := d.between(2*time.Minute, 5*time.Minute)
		gap := d.between(45*time.Millisecond, 95*time.Millisecond)
		for _, at := range []time.Duration{at, at + gap} {
			p.Writes = append(p.Writes, Write{At: at, Object: d.IntN(2), Kind: Update, Delay: d.between(30*time.Millisecond, 44*time.Millisecond)})
		}
		p.Writes[len(p.Writes)-1].Object = p.Writes[len(p.Writes)-2].Object
	}
}

// unchangedWrites has writes that do not change object 0.
func (d dice) unchangedWrites(p *Plan) {
	for range 4 {
		kind := []WriteKind{DryRun, Touch}[d.IntN(2)]
		p.Writes = append(p.Writes, Write{At: d.between(time.Minute, p.Length), Kind: kind, Delay: time.Millisecond})
		p.update(1+d.IntN(5), d.between(time.Minute, p.Length))
	}
}

// removedWebhook removes the webhook for longer than the interval of the canary, with writes.
func (d dice) removedWebhook(p *Plan) {
	r := &p.Runtimes[0]
	r.Canary, r.Contract = true, []contract.Version{contract.V2, contract.V3}[d.IntN(2)]
	removed := Fault{Kind: WebhookRemoved, At: d.between(time.Minute, 2*time.Minute), For: d.between(32*time.Second, 2*time.Minute)}
	p.Faults = []Fault{removed}
	p.update(0, d.between(removed.At, removed.At+removed.For))
	p.update(1, d.between(removed.At, removed.At+removed.For))
}

// refusedV3 has a gateway that refuses contract v3 with a foreign body.
func (d dice) refusedV3(p *Plan) {
	at := d.between(0, 3*time.Minute)
	first := 3 * time.Minute
	if d.chance(0.5) { // Only heartbeats are refused before the first write.
		at = d.between(40*time.Second, 45*time.Second)
		first = p.Length - 10*time.Second
	}
	p.Runtimes[0].Contract = contract.V3
	p.Runtimes[0].Fallback = true
	p.Gateway = true
	p.Faults = []Fault{{Kind: GatewayRefusesV3, At: at}}
	d.updates(p, 4, first, p.Length)
}

// downgrade replaces an agent of contract v3 by one of contract v1 in an outage. The new one resyncs the owner of
// its first review, and does not know the other owner.
func (d dice) downgrade(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract = contract.V3
	r.Owners = 2
	r.Objects = 4
	outage := Fault{Kind: LinksRefused, At: d.between(time.Minute, 2*time.Minute), For: d.between(70*time.Second, 90*time.Second)}
	p.Faults = []Fault{outage, {Kind: AgentDowngraded, At: outage.At + outage.For/2, For: outage.For / 4}}
	returns := outage.At + outage.For + d.between(time.Second, 20*time.Second)
	p.update(1, outage.At+outage.For/4)
	p.update(0, returns)
	p.Length = returns + time.Second // The resync of the return is in time, and its resend is not.
}

// wrongPaths has a runtime that requests unknown paths as fast as it can.
func (d dice) wrongPaths(p *Plan) {
	p.Rate = 20 + d.IntN(30)
	p.Faults = []Fault{{Kind: PathsWrong, At: d.between(time.Minute, 4*time.Minute), For: 2 * time.Second}}
	p.update(0, d.between(time.Minute, p.Length))
}

// rotation replaces all key material under traffic.
func (d dice) rotation(p *Plan) {
	p.Operators, p.Gateway, p.Runtimes[0].Agents = 1+d.IntN(2), d.chance(0.3), 1+d.IntN(2)
	p.Faults = []Fault{d.rotate(p)}
	d.someUpdates(p, 12, 90*time.Second, p.Length)
}

// expiry has a client certificate that expires before its renewal.
func (d dice) expiry(p *Plan) {
	p.Gateway = d.chance(0.3)
	expired := d.outage(CertificateExpired)
	expired.At = expired.At.Truncate(time.Second)
	p.Faults = []Fault{expired}
	d.updates(p, 3, expired.At, expired.At+expired.For)
}

// limited has more events than the rate limit of a runtime.
func (d dice) limited(p *Plan) {
	r := &p.Runtimes[0]
	p.Rate = 5 + d.IntN(20)
	r.Objects = 60
	at := d.between(time.Minute, 4*time.Minute)
	d.updates(p, r.Objects, at, at+5*time.Second)
}

// paused pauses an agent, with writes before, during and after it.
func (d dice) paused(p *Plan) {
	r := &p.Runtimes[0]
	r.Agents = 1 + d.IntN(2)
	pause := Fault{Kind: AgentPaused, At: d.between(2*time.Minute, 3*time.Minute), For: d.length(), Index: d.IntN(r.Agents)}
	p.Faults = []Fault{pause}
	d.someUpdates(p, 6, pause.At-time.Second, pause.At+pause.For+time.Second)
}

// repeated has a gateway that forwards each request a second time, long after the first answer.
func (d dice) repeated(p *Plan) {
	p.Gateway, p.Operators = true, 1+d.IntN(2)
	repeats := Fault{Kind: GatewayRepeats, At: d.between(0, 2*time.Minute), For: d.between(time.Minute, 3*time.Minute), Value: d.IntN(30_000)}
	p.Faults = []Fault{repeats, {
		Kind: []FaultKind{AgentReplaced, AgentKilled}[d.IntN(2)], At: repeats.At + repeats.For/2, For: d.between(time.Second, 20*time.Second),
	}}
	d.someUpdates(p, 6, repeats.At, repeats.At+repeats.For)
}

// rotate draws a rotation. The bits of Value are the steps with broken files.
func (d dice) rotate(p *Plan) Fault {
	return Fault{
		Kind: KeysRotated, At: d.between(time.Minute, p.Length/2), For: d.between(time.Minute, 2*time.Minute), Runtime: d.IntN(len(p.Runtimes)),
		Value: d.IntN(1 << (rotationSteps - 1)), // No later step replaces files that break before the last one.
	}
}

// active has two or three replicas that all work. A gateway asks them in turn, and one may be killed.
func (d dice) active(p *Plan) {
	p.Active, p.Gateway, p.Operators, p.Fleets = true, true, 2+d.IntN(2), d.chance(0.5)
	p.Runtimes[0].Contract = []contract.Version{contract.V3, contract.V2}[d.IntN(2)]
	if d.chance(0.5) {
		p.Faults = []Fault{{Kind: OperatorKilled, At: d.between(time.Minute, 3*time.Minute), For: d.length(), Index: d.IntN(p.Operators)}}
	}
	for range 30 {
		p.update(d.IntN(6), d.between(time.Minute, p.Length))
		p.Writes[len(p.Writes)-1].Delay = d.commit()
	}
}

// activeOnStream has active replicas that share a stream, without fleets. The stream delivers again what no handler
// takes in time, when the agent has sent it for the last time.
func (d dice) activeOnStream(p *Plan) {
	d.active(p)
	hangs := Fault{Kind: MapHangs, At: p.Length, For: d.between(time.Minute, 2*time.Minute)}
	p.Gateway, p.Fleets, p.Faults = false, false, append(p.Faults, hangs)
	p.onStream()
	d.updates(p, 6, hangs.At, hangs.At+10*time.Second)
}

// keptByStream has an event that the operator refuses for ever. No agent takes it back, as no replica led when it was
// stored. Other objects do not wait for it.
func (d dice) keptByStream(p *Plan) {
	away := d.outage(LeaderChanged)
	p.Faults = []Fault{away, {Kind: []FaultKind{EventRefused, EventForbidden, EventPanics}[d.IntN(3)], Value: d.IntN(inVerifier + 1)}}
	p.onStream()
	d.updates(p, 3, away.At, away.At+away.For)
	for range 12 {
		p.update(1+d.IntN(5), d.between(7*time.Minute, 10*time.Minute))
	}
}

// endedWhileAway kills an agent while no replica leads. The stream has its last heartbeat.
func (d dice) endedWhileAway(p *Plan) {
	away := Fault{Kind: LeaderChanged, At: 2 * time.Minute, For: d.between(190*time.Second, 4*time.Minute)}
	p.Faults = []Fault{away, {Kind: AgentKilled, At: away.At + d.between(40*time.Second, time.Minute), For: 6 * time.Minute}}
	p.Runtimes[0].Canary = true
	p.onStream()
}

// handover changes the leader of two replicas. The other one takes the messages of the stream.
func (d dice) handover(p *Plan) {
	p.Operators, p.Faults = 2, []Fault{{Kind: LeaderChanged, At: d.between(time.Minute, 3*time.Minute), For: d.length()}}
	p.onStream()
	d.updates(p, 6, time.Minute, p.Length)
}

// loud has a worker that is busy with the changes of one runtime, more than it can reconcile, while agents of quiet
// runtimes restart. Their resyncs must come all the same.
func (d dice) loud(p *Plan) {
	const most, objects, work, every = 9, 40, 50 * time.Millisecond, 25 * time.Millisecond
	p.Work = work
	p.Loud = true
	p.Runtimes[0].Contract = contract.V3
	p.Runtimes[0].Objects = objects
	for i := range 1 + d.IntN(most) {
		r := d.runtime(i + 1)
		r.Contract = contract.V3
		r.Fallback = false
		r.Agents = 1
		r.MaxKeys = 0
		r.Learns = false
		p.Runtimes = append(p.Runtimes, r)
		p.Faults = append(p.Faults, Fault{Kind: AgentKilled, At: d.between(130*time.Second, 150*time.Second), For: time.Second, Runtime: i + 1})
	}
	for at := 2 * time.Minute; at < 3*time.Minute; at += every {
		p.update(d.IntN(objects), at)
	}
}

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
	r.Contract = contract.V3
	r.Objects = objects
	r.MaxKeys = 0
	p.Padding = padding
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
		p.Runtimes[i].Contract = contract.V3
		p.Runtimes[i].Fallback = false
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
		r.MaxKeys = 2 + d.IntN(4)
		r.Objects = 6
		p.Managers = []core.Manager{"alpha", "beta"}
	}
}

// lose kills one of two agents for ever, with its pending events.
func (d dice) lose(p *Plan, r *RuntimePlan, runtime int, at time.Duration) {
	r.Contract = contract.V3
	r.Agents = 2
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool {
		return f.Kind == GatewayRefusesV3 || f.Kind == GatewayStatus || f.Kind == AgentPaused
	})
	if !p.hasAny(AgentGone) {
		p.Faults = append(p.Faults, Fault{Kind: AgentGone, At: at, Runtime: runtime})
	}
}
