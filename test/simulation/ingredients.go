package simulation

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// secondDice are apart from the first, so that an ingredient changes nothing else of a plan.
func secondDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 47))}
}

// thirdDice are apart from both, for the same reason.
func thirdDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 83))}
}

// fourthDice are apart from all of them, for the same reason.
func fourthDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 131))}
}

// fifthDice are apart from all of them, for the same reason.
func fifthDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 173))}
}

// sixthDice are apart from all of them, for the same reason.
func sixthDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 197))}
}

// restoredEtcd makes one plan in fifteen a scene in which the etcd of a runtime is restored from a backup, without an
// outage that the canary would notice. Reconciles have read the writes before the restore, which are lost, and writes
// follow. The backup is older than two writes of the canary. A restore may raise the revision.
func (d dice) restoredEtcd(p *Plan) {
	if !d.chance(1. / 15) {
		return
	}
	d.stage(p)
	r := &p.Runtimes[0]
	r.Canary = true
	if d.chance(0.7) { // Only its events name their writes.
		r.Contract = contract.V3
	}
	restored := Fault{
		Kind: EtcdRestored, At: d.between(time.Minute, 2*time.Minute), For: d.between(70*time.Second, 2*time.Minute),
		Value: []int{0, 0, bumped}[d.IntN(3)],
	}
	p.Faults = []Fault{restored}
	end := restored.At + restored.For
	d.updates(p, 6, end-20*time.Second, end)
	d.someUpdates(p, 6, end, end+90*time.Second)
	p.Length = 6 * time.Minute
}

// bumped is what the documentation of etcd adds to the revision of a restored backup.
const bumped = 1_000_000_000

// removedWatch makes one plan in fifteen a scene in which another program removes the webhook of one
// watch, and writes follow. The webhook of the canary stays, so that the canary notices nothing. The
// removal lasts longer than the time between two comparisons of the agent.
func (d dice) removedWatch(p *Plan) {
	if !d.chance(1. / 15) {
		return
	}
	d.stage(p)
	r := &p.Runtimes[0]
	r.Canary = true
	r.Contract = contract.V3
	removed := Fault{
		Kind: WatchRemoved, At: d.between(time.Minute, 2*time.Minute), For: d.between(32*time.Second, 3*time.Minute),
	}
	p.Faults = []Fault{removed}
	d.updates(p, 3, removed.At, removed.At+removed.For)
}

// ingredients adds several of one thing to a plan: a second manager in another state, a second fault
// of the same kind, messages and panics in numbers. One plan in seven is a scene of one of them.
func (d dice) ingredients(p *Plan) {
	if d.chance(1. / 7) {
		scenes := []func(*Plan){
			d.twoStates, d.secondResync, d.forgottenResync, d.malformedMessages, d.refusedOnStream, d.hiddenBacklog,
			d.rotatedCallers, d.panics,
		}
		d.stage(p)
		scenes[d.IntN(len(scenes))](p)
		return
	}

	d.repeatFault(p)
	d.repeatRestarts(p)
	d.addManagerAway(p)
	d.addMalformed(p)
	d.addLiar(p)
	d.addCallers(p)
	d.addPanics(p)
}

// repeatFault adds one fault of a plan a second time, shortly after its end.
func (d dice) repeatFault(p *Plan) {
	if d.chance(0.7) || len(p.Faults) == 0 || p.Loud {
		return
	}

	f := p.Faults[d.IntN(len(p.Faults))]
	once := []FaultKind{KeysRotated, CertificateExpired, AgentDowngraded, GatewayDrops, RuntimeDeleted}
	if f.isForEver() || slices.Contains(once, f.Kind) {
		return
	}
	gap := d.between(time.Second, time.Minute)
	if p.CleanStops { // The resend of the first resync is sent by then.
		gap += time.Minute
	}
	f.At += f.For + f.after() + gap
	p.Faults = append(p.Faults, f)
}

// repeatRestarts restarts each agent next to a loud runtime a second time. The second resync must
// also arrive.
func (d dice) repeatRestarts(p *Plan) {
	if p.Loud && d.chance(0.5) {
		d.restartAgain(p)
	}
}

func (d dice) restartAgain(p *Plan) {
	for _, f := range slices.Clone(p.Faults) {
		f.At += d.between(12*time.Second, 20*time.Second)
		p.Faults = append(p.Faults, f)
	}
}

// addManagerAway makes a gateway refuse one of two managers. The other one must not feel it.
func (d dice) addManagerAway(p *Plan) {
	if p.Gateway && !p.NATS && len(p.Managers) > 1 && d.chance(0.5) {
		p.Faults = append(p.Faults, d.managerAway(p))
	}
}

func (d dice) managerAway(p *Plan) Fault {
	statuses := []int{http.StatusNotFound, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}
	return Fault{
		Kind: ManagerAway, At: d.between(time.Minute, 3*time.Minute), For: d.between(20*time.Second, 5*time.Minute),
		Index: d.IntN(len(p.Managers)), Value: statuses[d.IntN(len(statuses))],
	}
}

// addMalformed makes a runtime publish messages that are no batches.
func (d dice) addMalformed(p *Plan) {
	if p.NATS && p.Rate == 0 && !p.Loud && d.chance(0.4) {
		p.Places = d.places()
		p.Faults = append(p.Faults, d.malformed(p, d.between(0, p.Length)))
	}
}

// places draws a small number of messages in memory. 0 is the default.
func (d dice) places() int { return []int{0, 8, 16, 32}[d.IntN(4)] }

func (d dice) malformed(p *Plan, at time.Duration) Fault {
	return Fault{
		Kind: MessagesMalformed, At: at, For: d.between(time.Second, 10*time.Second), Runtime: d.IntN(len(p.Runtimes)),
		Index: d.IntN(len(malformedBodies) + 1), Value: 20 + d.IntN(300),
	}
}

// addLiar adds a runtime that sends heartbeats with invented numbers, and nothing else.
func (d dice) addLiar(p *Plan) {
	if p.NATS || p.Rate > 0 || p.Loud || p.Active || p.CleanStops || d.chance(0.85) {
		return
	}
	d.lie(p)
}

func (d dice) lie(p *Plan) {
	p.Runtimes = append(p.Runtimes, RuntimePlan{
		Name: "liar", Contract: contract.V3, Protocol: "h2", Label: p.Runtimes[0].Label,
		Lies: []int64{-1, -1 << 40, math.MinInt64, math.MaxInt64}[d.IntN(4)],
	})
}

// addCallers makes agents demand a client certificate of the API server, whose authority may be replaced. A caller that
// is refused counts as a failed handshake, which lasts until the next heartbeat.
func (d dice) addCallers(p *Plan) {
	if p.hasAny(StrangersSilent, StrangersLarge) {
		return
	}
	for i := range p.Runtimes {
		r := &p.Runtimes[i]
		r.Callers = d.chance(0.2) && r.Lies == 0 && !r.Rare
		if r.Callers && d.chance(0.5) && !p.hasAny(CallersRotated) {
			p.Faults = append(p.Faults, d.callersRotated(i))
		}
	}
}

func (d dice) callersRotated(runtime int) Fault {
	return Fault{
		Kind: CallersRotated, At: d.between(time.Minute, 3*time.Minute), For: d.between(30*time.Second, 2*time.Minute), Runtime: runtime,
	}
}

// addPanics makes a callback of the operator panic for everything of a runtime, resyncs included.
func (d dice) addPanics(p *Plan) {
	if p.Loud || p.CleanStops || p.hasAny(GatewayDrops) || d.chance(0.85) {
		return
	}
	f := d.callbackPanics(p)
	f.At, f.Runtime = d.between(0, p.Length), d.IntN(len(p.Runtimes))
	if p.Runtimes[f.Runtime].Lies == 0 {
		p.Faults = append(p.Faults, f)
	}
}

// callbackPanics has the map function. Later dice move some panics to other places.
func (d dice) callbackPanics(*Plan) Fault {
	return Fault{Kind: CallbackPanics, At: d.between(time.Minute, 3*time.Minute), For: d.length(), Value: inMapFunction}
}

// panicsAnywhere makes one plan in ten a scene in which the map function, a handler in front of it,
// the verifier or its domains panic: for ever for one object, or for a while for a runtime. It moves
// half of the panics of other plans.
func (d dice) panicsAnywhere(p *Plan) {
	if !d.chance(1. / 10) {
		d.movePanics(p)
		return
	}

	d.stage(p)
	p.Runtimes[0].Contract = contract.V3
	if d.chance(0.5) {
		d.panicsForOne(p)
	} else {
		d.panicsForAll(p)
	}
}

// movePanics moves no panic to the verifier where heartbeats are rare. A refused heartbeat shows
// only in the next one.
func (d dice) movePanics(p *Plan) {
	isRare := func(r RuntimePlan) bool { return r.Rare }
	rare := slices.ContainsFunc(p.Runtimes, isRare)

	for i := range p.Faults {
		f := &p.Faults[i]
		if f.Kind != EventPanics && f.Kind != CallbackPanics || d.chance(0.5) {
			continue
		}

		f.Value = d.IntN(inHandler + 1)
		if rare && f.panicsInVerifier() {
			f.Value = inHandler
		}
	}
}

// panicsForOne has two objects for which the operator's code always panics, one in a handler or a
// map function and one in the verifier. Writes of the first come with one of another object, and the
// second is written without others. The panics must cost neither other objects nor the numbers.
func (d dice) panicsForOne(p *Plan) {
	p.Faults = []Fault{
		{Kind: EventPanics, Index: 0, Value: []int{inHandler, inHandler, inMapFunction}[d.IntN(3)]},
		{Kind: EventPanics, Index: 1, Value: []int{inVerifier, inDomains}[d.IntN(2)]},
	}
	for i := range 3 {
		at := 2*time.Minute + time.Duration(i)*d.between(20*time.Second, 40*time.Second)
		pair := []int{0, 2 + i}
		if d.chance(0.5) {
			slices.Reverse(pair)
		}
		p.update(pair[0], at)
		p.update(pair[1], at+time.Millisecond)
	}
	p.update(1, d.between(2*time.Minute, 4*time.Minute))
	p.update(5, 4*time.Minute+d.between(0, 30*time.Second))
}

// panicsForAll has a callback that panics for all of a runtime, and writes before, during and after
// that time.
func (d dice) panicsForAll(p *Plan) {
	panics := Fault{
		Kind: CallbackPanics, At: d.between(2*time.Minute, 3*time.Minute), For: d.length(),
		Value: d.IntN(inHandler + 1),
	}
	p.Faults = []Fault{panics}
	d.someUpdates(p, 2+d.IntN(8), panics.At, panics.At+panics.For)
	d.someUpdates(p, 4, time.Minute, p.Length)
}

// twoStates has two managers. One of them is away for long enough to be stale, and the other one is not.
func (d dice) twoStates(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract, r.Canary, p.Gateway, p.Managers = contract.V3, d.chance(0.3), true, []core.Manager{"alpha", "beta"}
	away := d.managerAway(p)
	away.For = d.between(3*time.Minute, 5*time.Minute)
	p.Faults = []Fault{away}
	d.someUpdates(p, 8, away.At-20*time.Second, away.At+away.For)
}

// secondResync has a loud runtime, and agents that restart twice.
func (d dice) secondResync(p *Plan) {
	d.loud(p)
	d.restartAgain(p)
}

// forgottenResync deletes a runtime while a handler hangs with its resync.
func (d dice) forgottenResync(p *Plan) {
	r := &p.Runtimes[0]
	r.Contract = contract.V3
	r.Learns = false
	r.Label = "kyma-of-"
	p.Labels = true
	hangs := Fault{Kind: MapHangs, At: d.between(time.Minute, 2*time.Minute), For: d.between(40*time.Second, 2*time.Minute)}
	p.Faults = []Fault{
		hangs,
		{Kind: AgentKilled, At: hangs.At + time.Second, For: time.Second},
		{Kind: RuntimeDeleted, At: hangs.At + d.between(10*time.Second, 30*time.Second), For: d.between(time.Minute, 3*time.Minute)},
	}
	d.someUpdates(p, 4, time.Minute, p.Length)
}

// malformedMessages has more messages that are no batches than places, and writes behind them.
func (d dice) malformedMessages(p *Plan) {
	p.onStream()
	p.Places = []int{8, 16, 32}[d.IntN(3)]
	for range 3 {
		p.Faults = append(p.Faults, d.malformed(p, d.between(time.Minute, 3*time.Minute)))
	}
	d.someUpdates(p, 12, 2*time.Minute, p.Length)
}

// refusedOnStream has events that the operator refuses for ever, more often than there are places for refusals.
func (d dice) refusedOnStream(p *Plan) {
	p.onStream()
	p.Places = []int{8, 16}[d.IntN(2)]
	p.Faults = []Fault{{Kind: []FaultKind{EventRefused, EventForbidden}[d.IntN(2)]}}
	for range 6 {
		p.update(0, d.between(2*time.Minute, p.Length))
	}
	d.someUpdates(p, 6, 2*time.Minute, p.Length)
}

// hiddenBacklog has a runtime with events that wait, and one that claims a negative number of them.
func (d dice) hiddenBacklog(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	p.Faults = []Fault{{Kind: EventRefused}}
	d.lie(p)
	for range 6 {
		p.update(0, d.between(time.Minute, p.Length))
	}
}

// rotatedCallers replaces the authority of the API server, whose certificate the agents demand.
func (d dice) rotatedCallers(p *Plan) {
	r := &p.Runtimes[0]
	r.Callers, r.Rare, r.Agents = true, false, 1+d.IntN(2)
	p.Faults = []Fault{d.callersRotated(0)}
	d.someUpdates(p, 8, time.Minute, p.Length)
}

// panics has a callback that panics, and resyncs and changes in that time.
func (d dice) panics(p *Plan) {
	p.Runtimes[0].Contract = contract.V3
	f := d.callbackPanics(p)
	p.Faults = []Fault{f, {Kind: AgentKilled, At: f.At + f.For/2, For: time.Second}}
	d.someUpdates(p, 8, f.At, f.At+f.For)
}
