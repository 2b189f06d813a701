package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// Plan is one schedule. It is drawn from the seed before the start.
type Plan struct {
	Seed       uint64
	Length     time.Duration // of writes and faults
	Runtimes   []RuntimePlan
	Operators  int
	NATS       bool // a NATS server carries the batches, of one manager
	Gateway    bool // a gateway ends TLS; otherwise connections reach the operator
	Attacker   bool
	Labels     bool // labels of objects identify runtimes, and an event is for the whole runtime
	Active     bool // each replica works, without an election
	Fleets     bool // each active replica has a fleet
	Managers   []core.Manager
	Writes     []Write
	Faults     []Fault
	Padding    int           // bytes in the names of objects, so that batches are cut
	Rate       int           // events of a runtime per second, with bursts of twice as many; 0: the default
	CleanStops bool          // agents stop with nothing pending, and restart soon
	Work       time.Duration // of a reconcile; 0: 20 ms
	Loud       bool          // one runtime has more changes than the worker can reconcile
	Measured   bool          // for latencies only: the run does not wait for the end of faults
	Selective  bool          // objects change their labels and owners, and an event is for an owner
	Status     core.Manager  // watches the status
	Places     int           // for messages of the stream in memory; 0: the default
}

// RuntimePlan is one runtime with its agents.
type RuntimePlan struct {
	Name     string
	Contract contract.Version
	Fallback bool
	Protocol string
	Agents   int
	Canary   bool
	MaxKeys  int
	Objects  int
	Learns   bool   // the agent learns its managers from events
	Owners   int    // of the objects, in turn; 0: one
	Label    string // begins the name of the object that represents the runtime, which has its identity in a label
	Bulk     int    // additional bytes of each object
	ManyCAs  bool   // the agent trusts more authorities than fit into a heartbeat
	Rare     bool   // heartbeats are rare
	Keeps    bool   // the agents keep their webhook configuration
	Callers  bool   // the webhook demands a client certificate
	Lies     int64  // it has no agent and no object, and sends heartbeats with so many pending events; 0: it is honest
}

// WriteKind is the kind of a write.
type WriteKind string

// The kinds of writes.
const (
	Update       WriteKind = "update"
	Delete       WriteKind = "delete"
	DryRun       WriteKind = "dry-run"
	Touch        WriteKind = "touch" // changes no watched field
	BadOwner     WriteKind = "bad-owner"
	Unreadable   WriteKind = "unreadable" // its review cannot be parsed
	OtherManager WriteKind = "elsewhere"  // only a manager without an operator watches it
	Relabel      WriteKind = "relabel"    // other managers watch it then
	Transfer     WriteKind = "transfer"   // to the other owner
	Status       WriteKind = "status"     // of the subresource
)

// Write is one write to one object. It is committed after Delay.
type Write struct {
	At      time.Duration
	Runtime int
	Object  int
	Kind    WriteKind
	Delay   time.Duration
	Reject  bool
}

// Fault is one fault.
type Fault struct {
	At, For time.Duration
	Kind    FaultKind
	Runtime int
	Index   int // of the agent, the operator or the object
	Value   int
}

func (w *Write) String() string {
	text := fmt.Sprintf("%9s write %s object %d of runtime %d, committed after %s", w.At, w.Kind, w.Object, w.Runtime, w.Delay)
	if w.Reject {
		text += ", rejected"
	}
	return text
}

func (f *Fault) String() string {
	return fmt.Sprintf("%9s fault %s for %s: runtime %d, index %d, value %d", f.At, f.Kind, f.For, f.Runtime, f.Index, f.Value)
}

// String returns the schedule in the order of its virtual times.
func (p *Plan) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d: %s, %d operators, NATS %v, gateway %v, attacker %v, managers %v\n",
		p.Seed, p.Length, p.Operators, p.NATS, p.Gateway, p.Attacker, p.Managers)
	for i := range p.Runtimes {
		fmt.Fprintf(&text, "  %+v\n", p.Runtimes[i])
	}
	for _, line := range p.lines() {
		fmt.Fprintf(&text, "  %s\n", line)
	}
	return text.String()
}

func (p *Plan) lines() []string {
	type timed struct {
		at   time.Duration
		text string
	}
	var all []timed
	for i := range p.Writes {
		all = append(all, timed{p.Writes[i].At, p.Writes[i].String()})
	}
	for i := range p.Faults {
		all = append(all, timed{p.Faults[i].At, p.Faults[i].String()})
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	lines := make([]string, len(all))
	for i := range all {
		lines[i] = all[i].text
	}
	return lines
}

// end returns the time of the last write and of the end of the last fault.
func (p *Plan) end() time.Duration {
	end := p.Length
	for i := range p.Faults {
		if !p.Measured {
			end = max(end, p.Faults[i].At+p.Faults[i].For+p.Faults[i].after())
		}
	}
	return end
}

func draw(seed uint64) *Plan {
	d := newDice(seed)
	p := &Plan{
		Seed: seed, Length: d.between(4*time.Minute, 16*time.Minute), Operators: 1 + d.weighted(6, 3, 1),
		Gateway: d.chance(0.4), Attacker: d.chance(0.1), Managers: []core.Manager{"alpha", "beta"}[:1+d.weighted(2, 1)],
	}
	for i := range 1 + d.weighted(5, 3) {
		p.Runtimes = append(p.Runtimes, d.runtime(i))
	}
	d.writes(p)
	d.faults(p)
	d.theme(p)
	d.learners(p)
	d.scene(p)
	d.rare(p)
	d.onNATS(p)
	d.byLabels(p)
	d.selective(p)
	secondDice(seed).ingredients(p)
	thirdDice(seed).removedWatch(p)
	fourthDice(seed).restoredEtcd(p)
	fifthDice(seed).keptWebhooks(p)
	sixthDice(seed).panicsAnywhere(p)
	p.sort()
	return p
}

type dice struct{ *rand.Rand }

func newDice(seed uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, 17))}
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Float64()*float64(most-least)).Round(time.Millisecond)
}

// weighted returns an index with the probability of its weight.
func (d dice) weighted(weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	drawn := d.IntN(sum)
	for i, w := range weights {
		if drawn -= w; drawn < 0 {
			return i
		}
	}
	return 0
}

func (d dice) runtime(i int) RuntimePlan {
	r := RuntimePlan{
		Name: fmt.Sprintf("skr-%d", i), Contract: contract.V3, Protocol: "h2", Agents: 1 + d.weighted(3, 1),
		Canary: d.chance(0.6), Objects: 1 + d.IntN(6), ManyCAs: d.chance(0.1),
	}
	switch d.weighted(6, 1, 3) {
	case 1:
		r.Contract = contract.V1
	case 2:
		r.Contract = contract.V2
	}
	if r.Contract == contract.V3 && d.chance(0.3) {
		r.Fallback = true
	}
	if d.chance(0.3) {
		r.Protocol = "http/1.1"
	}
	if d.chance(0.2) {
		r.MaxKeys = 1 + d.IntN(5)
	}
	return r
}

// learners draws the agents that know no manager before its first event.
func (d dice) learners(p *Plan) {
	for i := range p.Runtimes {
		p.Runtimes[i].Learns = d.chance(0.2)
	}
}

// byLabels identifies runtimes by labels in one plan of four. In some, an object is deleted for a while.
func (d dice) byLabels(p *Plan) {
	for i := range p.Runtimes {
		if p.Runtimes[i].Owners > 1 || p.Runtimes[i].Rare || p.Loud {
			return
		}
	}
	if p.Labels = d.chance(0.25); !p.Labels {
		return
	}
	for i := range p.Runtimes {
		p.Runtimes[i].Label = "kyma-of-"
	}
	if f := (Fault{Kind: RuntimeDeleted, At: d.between(0, p.Length), For: d.length()}); d.chance(0.5) && !p.CleanStops {
		p.Faults = append(p.Faults, f)
	}
}

// selective makes some writes change labels, owners or the status. An older contract knows no second owner after a
// restart, and the places of the outbox are counted by the first labels.
func (d dice) selective(p *Plan) {
	if d.chance(0.6) || p.Labels || p.Loud || p.hasAny(AgentDowngraded) || slices.ContainsFunc(p.Runtimes, func(r RuntimePlan) bool {
		return r.MaxKeys > 0 || r.forgets()
	}) {
		return
	}
	p.Selective = true
	for i := range p.Runtimes {
		if r := &p.Runtimes[i]; r.Contract == contract.V3 && !r.Fallback {
			r.Owners = 2
		}
	}
	if d.chance(0.3) {
		p.Status = p.Managers[len(p.Managers)-1]
	}
	for i := range p.Writes {
		if w := &p.Writes[i]; w.Kind == Update {
			w.Kind = []WriteKind{Update, Relabel, Transfer, Status}[d.weighted(4, 2, 1, 1)]
			if w.Kind == Transfer && p.Status != "" { // A watch of the status learns of no other owner.
				w.Kind = Update
			}
		}
	}
}

// rare makes heartbeats rare in half of the plans in which all outages end connections. The promise is the same. Other
// outages, such as a pause, and the end of drops show only in a later heartbeat.
func (d dice) rare(p *Plan) {
	if p.Gateway || p.NATS || p.Rate > 0 || d.chance(0.5) || p.hasAny(
		AgentPaused, AgentDowngraded, SenderForbidden, SenderUnknown, VerifierBroken, AnswersLost, CertificateExpired,
		EventRefused, EventForbidden, EventPanics,
	) {
		return
	}
	for i := range p.Runtimes {
		r := &p.Runtimes[i]
		r.Rare = r.Contract == contract.V3 && r.MaxKeys == 0
	}
}

// forgets reports whether a new agent requests no resync before its first event, because it knows no owner or no
// manager.
func (r *RuntimePlan) forgets() bool { return r.Learns || r.Contract == contract.V1 }

// writes draws single writes and bursts.
func (d dice) writes(p *Plan) {
	for range 3 + d.IntN(12) {
		at := d.between(0, p.Length)
		runtime := d.IntN(len(p.Runtimes))
		for range 1 + d.weighted(4, 1, 1)*d.IntN(6) {
			p.Writes = append(p.Writes, d.write(p, at, runtime))
			at += d.between(0, 2*time.Second)
		}
	}
}

func (p *Plan) sort() {
	slices.SortStableFunc(p.Writes, func(a, b Write) int { return cmp.Compare(a.At, b.At) })
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

func (d dice) write(p *Plan, at time.Duration, runtime int) Write {
	kinds := []WriteKind{Update, Delete, DryRun, Touch, BadOwner, Unreadable}
	w := Write{
		At: at, Runtime: runtime, Object: d.IntN(p.Runtimes[runtime].Objects),
		Kind: kinds[d.weighted(30, 4, 2, 2, 1, 1)], Delay: d.between(time.Millisecond, 50*time.Millisecond),
	}
	// Contract v1 sends nothing for an object without owner, and no resync before it knows one.
	if p.Runtimes[runtime].Contract == contract.V1 && (w.Kind == BadOwner || w.Kind == Unreadable) {
		w.Kind = BadOwner
		w.Reject = true
	}
	switch d.weighted(8, 2, 1) {
	case 1:
		w.Delay = d.between(0, 29*time.Second)
	case 2:
		w.Reject = true
	}
	return w
}
