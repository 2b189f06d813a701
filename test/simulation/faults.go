package simulation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// FaultKind is the kind of a fault.
type FaultKind string

// The faults.
const (
	AgentKilled       FaultKind = "agent killed"    // it comes back with a new epoch
	AgentReplaced     FaultKind = "agent replaced"  // stopped in good order, a new instance comes
	AgentCrashes      FaultKind = "agent crashes"   // killed several times in a row
	AgentGone         FaultKind = "agent gone"      // killed for ever, another one stays
	OperatorKilled    FaultKind = "operator killed" // the lease of a leader expires after 15 s
	LeaderChanged     FaultKind = "leader changed"  // stopped in good order
	LinksCut          FaultKind = "links cut"       // connections break after Value bytes
	LinksSilent       FaultKind = "links silent"    // half open: all bytes are dropped
	LinksSlow         FaultKind = "links slow"      // Value ms of latency
	AnswersLost       FaultKind = "answers lost"    // requests arrive
	LinksRefused      FaultKind = "links refused"
	VerifierBroken    FaultKind = "verifier broken" // it returns an error
	SenderForbidden   FaultKind = "sender forbidden"
	SenderUnknown     FaultKind = "sender unknown" // 401
	EventRefused      FaultKind = "event refused"  // the map function fails for one object, for ever
	EventForbidden    FaultKind = "event forbidden"
	EventPanics       FaultKind = "event panics"
	ManagerUnknown    FaultKind = "manager unknown" // one more manager, without an operator
	ManagersInvented  FaultKind = "managers invented"
	WebhookRemoved    FaultKind = "webhook removed"
	WatchRemoved      FaultKind = "watch removed"    // the webhook of one manager, which has Index
	WebhooksChanged   FaultKind = "webhooks changed" // of agents that keep them; Value is the kind of the change
	EtcdRestored      FaultKind = "etcd restored"    // at its end, to the state at its start; Value is added to the revision
	SinkStalled       FaultKind = "sink stalled"
	GatewayRefusesV3  FaultKind = "gateway refuses v3" // 403 with a foreign body
	GatewayStatus     FaultKind = "gateway answers"    // Value is the status
	GatewayDrops      FaultKind = "gateway drops"      // it answers 202, and forwards nothing
	MapSlow           FaultKind = "map function slow"
	MapHangs          FaultKind = "map function hangs"
	StrangersSilent   FaultKind = "strangers silent"    // send one byte of large reviews
	StrangersLarge    FaultKind = "strangers large"     // use up the memory for reviews
	AgentPaused       FaultKind = "agent paused"        // as after SIGSTOP
	AgentLeft         FaultKind = "agent left"          // stopped in good order for ever, another one stays
	AgentDowngraded   FaultKind = "agent downgraded"    // killed, and then one of contract v1 comes
	GatewayRepeats    FaultKind = "gateway repeats"     // it forwards each request again after Value ms
	GatewayLimits     FaultKind = "gateway limits"      // 413 for bodies above Value bytes, for ever
	GatewayRetryAfter FaultKind = "gateway Retry-After" // Value with Retry-After
	PathsWrong        FaultKind = "paths wrong"         // the runtime asks for pages that do not exist
	KeysRotated       FaultKind = "keys rotated"        // Value has the steps with broken files
	RuntimeDeleted    FaultKind = "runtime deleted"     // no object represents it
	ManagerAway       FaultKind = "manager away"        // the gateway answers Value for one manager, which has Index
	MessagesMalformed FaultKind = "messages malformed"  // Value of them, of the kind Index
	CallersRotated    FaultKind = "callers rotated"     // the API server gets a certificate of another authority
	CallbackPanics    FaultKind = "callback panics"     // for all of a runtime, at the place Value
	// CertificateExpired begins when the first certificate of the runtime expires, and ends when it is renewed.
	CertificateExpired FaultKind = "certificate expired"
)

// shares has the kinds of faults with their weights.
func shares() ([]FaultKind, []int) {
	kinds := []FaultKind{
		AgentKilled, AgentReplaced, AgentCrashes, AgentGone, OperatorKilled, LeaderChanged, LinksCut, LinksSilent, LinksSlow,
		AnswersLost, LinksRefused, VerifierBroken, SenderForbidden, SenderUnknown, EventRefused, EventForbidden,
		EventPanics, ManagerUnknown, ManagersInvented, WebhookRemoved, SinkStalled, GatewayRefusesV3, GatewayStatus, MapSlow,
		MapHangs, StrangersSilent, GatewayDrops, AgentPaused, GatewayRepeats, KeysRotated, CertificateExpired,
	}
	weights := []int{4, 4, 1, 3, 4, 3, 4, 3, 2, 4, 3, 2, 2, 1, 3, 2, 1, 2, 1, 3, 2, 3, 3, 1, 1, 2, 6, 4, 3, 3, 2}
	return kinds, weights
}

// faults draws up to six. One plan in eight has none.
func (d dice) faults(p *Plan) {
	if d.chance(0.125) {
		return
	}
	for range 1 + d.IntN(6) {
		if f := d.fault(p); p.allows(&f) {
			p.Faults = append(p.Faults, f)
		}
	}
}

// allows reports whether a plan may have a fault. Only heartbeats of contract v3 show that an agent is lost
// with its events.
func (p *Plan) allows(f *Fault) bool {
	switch f.Kind {
	case GatewayRefusesV3, GatewayStatus, GatewayRepeats:
		return p.Gateway
	case KeysRotated, CertificateExpired:
		return !p.hasAny(KeysRotated, CertificateExpired)
	case GatewayDrops: // Only the numbers of contract v3 show the loss.
		return p.Gateway && !slices.ContainsFunc(p.Runtimes, func(r RuntimePlan) bool { return r.Contract != contract.V3 || r.Fallback })
	case AgentGone:
		r := &p.Runtimes[f.Runtime]
		return r.Agents > 1 && r.Contract == contract.V3 && !p.hasAny(AgentGone, GatewayRefusesV3, GatewayStatus, AgentPaused)
	case AgentPaused: // Reviews that a paused agent missed would be lost with it.
		return !p.hasAny(AgentGone)
	default:
		return true
	}
}

func (d dice) fault(p *Plan) Fault {
	kinds, weights := shares()
	f := Fault{
		Kind: kinds[d.weighted(weights...)], At: d.between(0, p.Length), Runtime: d.IntN(len(p.Runtimes)),
		For: d.length(),
	}
	switch f.Kind {
	case AgentKilled, AgentReplaced, AgentCrashes, AgentPaused:
		f.Index = d.IntN(p.Runtimes[f.Runtime].Agents)
	case GatewayRepeats:
		f.Value = d.IntN(30_000)
	case KeysRotated:
		f = d.rotate(p)
	case CertificateExpired:
		f.At = f.At.Truncate(time.Second) + time.Second
	case AgentGone:
		f.For = 0
	case GatewayRefusesV3:
		if p.canFallBack() && d.chance(0.5) {
			f.For = 0
		}
	case WebhookRemoved:
		if d.chance(0.2) {
			f.At, f.For = d.between(0, time.Minute), d.between(13*time.Minute, 15*time.Minute)
		}
	case OperatorKilled:
		f.Index = d.IntN(p.Operators)
	case LinksCut:
		f.Value = 1 + d.IntN(12_000)
	case LinksSlow:
		f.Value = 100 + d.IntN(3_000)
	case EventRefused, EventForbidden, EventPanics:
		f.Index = d.IntN(p.Runtimes[f.Runtime].Objects)
		f.At, f.For, f.Value = 0, 0, d.IntN(2)
	case ManagerUnknown, ManagersInvented:
		f.For = 0
	case GatewayStatus:
		f.Value = []int{401, 403, 404, 413, 413, 413, 429, 500, 502, 503}[d.IntN(10)]
	case SinkStalled:
		f.For = d.between(time.Second, 2*time.Minute)
	default:
	}
	return f
}

// canFallBack reports whether each runtime can use an older contract.
func (p *Plan) canFallBack() bool {
	return !slices.ContainsFunc(p.Runtimes, func(r RuntimePlan) bool { return r.Contract == contract.V3 && !r.Fallback })
}

// length draws the length of a fault: short, medium or long, equally often.
func (d dice) length() time.Duration {
	return []func() time.Duration{
		func() time.Duration { return d.between(100*time.Millisecond, 3*time.Second) },
		func() time.Duration { return d.between(3*time.Second, 40*time.Second) },
		func() time.Duration { return d.between(40*time.Second, 6*time.Minute) },
	}[d.IntN(3)]()
}

func (w *world) inject(f Fault) {
	if !w.sleepUntil(f.At) {
		return
	}
	w.logf("fault begins: %s", f.String())
	if end := w.begin(f); end != nil {
		w.sleepUntil(f.At + f.For)
		end()
		w.logf("fault ends: %s", f.Kind)
	}
}

// begin starts a fault, and returns the function that ends it. It is nil if the fault has no end, or is over.
func (w *world) begin(f Fault) (end func()) {
	switch f.Kind {
	case LinksCut, LinksSilent, LinksSlow, AnswersLost, LinksRefused:
		return w.beginLinkFault(f)
	case AgentKilled, AgentReplaced, AgentCrashes, AgentGone, AgentLeft, AgentDowngraded, AgentPaused:
		return w.beginAgent(f)
	case KeysRotated:
		w.rotate(f)
		return nil
	case CertificateExpired:
		return w.clusters[f.Runtime].awaitRenewal()
	case CallersRotated:
		w.rotateCallers(f)
		return nil
	case MessagesMalformed:
		w.publishMalformed(f)
		return nil
	case ManagerAway:
		return w.awayManager(f)
	case RuntimeDeleted:
		return w.deleteRuntime(&w.plan.Runtimes[f.Runtime])
	case PathsWrong:
		w.askWrongPaths(f)
		return nil
	case OperatorKilled, LeaderChanged:
		return w.beginOperator(f)
	case ManagerUnknown:
		w.clusters[f.Runtime].watch("gamma")
		return nil
	case ManagersInvented:
		w.clusters[f.Runtime].invent(120)
		return nil
	case WebhookRemoved:
		return w.clusters[f.Runtime].removeWebhook(f.For)
	case WatchRemoved:
		return w.clusters[f.Runtime].removeWatch(w.plan.Managers[f.Index])
	case WebhooksChanged:
		return w.clusters[f.Runtime].changeWebhooks(f.Value)
	case EtcdRestored:
		return w.clusters[f.Runtime].backUp(int64(f.Value))
	case SinkStalled:
		return w.stallSinks(f)
	case StrangersSilent:
		return w.clusters[f.Runtime].openReviews(1)
	case StrangersLarge:
		return w.clusters[f.Runtime].openReviews(2 << 20)
	default:
		if end = w.toggle(f); f.isForEver() {
			return nil
		}
		return end
	}
}

// toggle turns a behaviour on, and returns the function that turns it off.
func (w *world) toggle(f Fault) func() {
	w.behaviour.set(f, true)
	var broken []func()
	for i := range w.plan.Runtimes {
		if r := &w.plan.Runtimes[i]; f.breaks(i, r) {
			broken = append(broken, w.history.Break(r.Name, string(f.Kind)))
		}
	}
	return func() {
		w.behaviour.set(f, false)
		for _, mend := range broken {
			mend()
		}
	}
}

// awayManager makes the gateway refuse a manager.
func (w *world) awayManager(f Fault) func() {
	manager := w.plan.Managers[f.Index]
	w.behaviour.set(f, true)
	var broken []func()
	for i := range w.plan.Runtimes {
		broken = append(broken, w.history.BreakManager(w.plan.Runtimes[i].Name, manager, string(f.Kind)))
	}

	return func() {
		w.behaviour.set(f, false)
		for _, mend := range broken {
			mend()
		}
	}
}

// breaks reports whether a fault is an outage of a runtime.
func (f *Fault) breaks(index int, r *RuntimePlan) bool {
	switch f.Kind {
	case GatewayStatus, GatewayDrops, GatewayRetryAfter:
		return true
	case GatewayRefusesV3:
		return r.Contract == contract.V3 && !r.Fallback
	case VerifierBroken, SenderForbidden, SenderUnknown:
		return index == f.Runtime
	case CallbackPanics:
		return index == f.Runtime && f.panicsInVerifier()
	default:
		return false
	}
}

// panicsInVerifier reports whether a callback panics before the operator believes the sender.
func (f *Fault) panicsInVerifier() bool { return f.Value == inVerifier || f.Value == inDomains }

// stallSinks makes the log sinks of a runtime block until the fault ends.
func (w *world) stallSinks(f Fault) func() {
	name := w.plan.Runtimes[f.Runtime].Name
	w.sinks.Store(name, w.began.Add(f.At+f.For))
	return func() { w.sinks.Delete(name) }
}

func (w *world) beginLinkFault(f Fault) func() {
	client := w.plan.Runtimes[f.Runtime].Name
	change := func(on bool) {
		w.network.change(client, func(state *conditions) { state.apply(f, on) })
	}
	change(true)
	if f.Kind == LinksCut || f.Kind == LinksRefused {
		w.network.reset(func(l *link) bool { return l.client == client })
	}
	broken := func() {}
	if f.Kind == LinksSilent || f.Kind == LinksRefused {
		broken = w.history.Break(client, string(f.Kind))
	}
	return func() {
		change(false)
		broken()
		// After dropped bytes, a real TCP connection would not go on.
		w.network.reset(func(l *link) bool { return l.client == client && f.Kind != LinksSlow })
	}
}

func (state *conditions) apply(f Fault, on bool) {
	switch f.Kind {
	case LinksCut:
		state.cutAfter = 0
		if on {
			state.cutAfter = int64(f.Value)
		}
	case LinksSilent:
		state.silent = on
	case LinksSlow:
		state.latency = time.Millisecond
		if on {
			state.latency = time.Duration(f.Value) * time.Millisecond
		}
	case AnswersLost:
		state.noAnswers = on
	case LinksRefused:
		state.refuse = on
	default:
	}
}

func (w *world) beginAgent(f Fault) func() {
	c := w.clusters[f.Runtime]
	switch f.Kind {
	case AgentReplaced:
		c.stopAgent(f.Index, true)
		return func() { c.startAgent(f.Index, true) }
	case AgentCrashes:
		for range 3 {
			c.stopAgent(f.Index, false)
			sleep(time.Second)
			c.startAgent(f.Index, false)
			sleep(2 * time.Second)
		}
		return nil
	case AgentGone, AgentLeft:
		c.stopAgent(f.Index, f.Kind == AgentLeft)
		return nil
	case AgentPaused:
		return c.pauseAgent(f)
	case AgentDowngraded:
		c.stopAgent(f.Index, false)
		c.downgrade()
		return func() { c.startAgent(f.Index, true) }
	default:
		c.stopAgent(f.Index, false)
		return func() { c.startAgent(f.Index, false) }
	}
}

func (w *world) beginOperator(f Fault) func() {
	index := f.Index
	if f.Kind == LeaderChanged {
		index = w.leading()
	}
	if index < 0 {
		return nil
	}
	w.stopOperator(index, f.Kind == LeaderChanged)
	return func() { w.startOperator(index) }
}

// behaviour contains the present faults of the gateway and of the operator's code.
type behaviour struct {
	plan *Plan

	mu     sync.Mutex
	active map[Fault]bool
}

func newBehaviour(plan *Plan) *behaviour {
	return &behaviour{plan: plan, active: make(map[Fault]bool)}
}

func (b *behaviour) set(f Fault, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.active[f] = true
	} else {
		delete(b.active, f)
	}
}

// find returns an active fault that concerns a runtime and an object, or any of those that are empty.
func (b *behaviour) find(kind FaultKind, runtime core.RuntimeID, object string) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.active {
		ofRuntime := runtime == "" || b.plan.Runtimes[f.Runtime].Name == string(runtime)
		if f.Kind == kind && ofRuntime && (object == "" || object == b.plan.object(f.Runtime, f.Index)) {
			return f, true
		}
	}
	return Fault{}, false
}

func (b *behaviour) any(kind FaultKind) (Fault, bool) { return b.find(kind, "", "") }

// The places of a panic, as the value of EventPanics and of CallbackPanics.
const (
	inMapFunction = iota
	inVerifier
	inDomains
	inHandler
)

var errBroken = errors.New("the verifier is broken")

// verify returns a verifier with the present faults in front of the real one.
func (b *behaviour) verify(next core.Verifier) core.Verifier {
	return core.VerifierFunc(func(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
		if err := b.refuse(peer.ID, event); err != nil {
			return err
		}
		return next.Verify(ctx, peer, event)
	})
}

func (b *behaviour) refuse(runtime core.RuntimeID, event *core.WatchEvent) error {
	if _, on := b.find(VerifierBroken, runtime, ""); on {
		return errBroken
	}
	if _, on := b.find(SenderForbidden, runtime, ""); on {
		return listener.Forbidden("simulated", errors.New("this sender is forbidden"))
	}
	if _, on := b.find(SenderUnknown, runtime, ""); on {
		return listener.Unauthenticated("simulated", errors.New("this sender is not known"))
	}
	b.panicAt(inVerifier, runtime, event)
	if event.Resync {
		return nil
	}
	if _, on := b.find(EventForbidden, runtime, event.Watched.Name); on {
		return listener.Forbidden("simulated", errors.New("this event is forbidden"))
	}
	return nil
}

// panicAt panics if the callback of a place does so now, for a runtime or for the object of an
// event.
func (b *behaviour) panicAt(place int, runtime core.RuntimeID, event *core.WatchEvent) {
	if f, on := b.find(CallbackPanics, runtime, ""); on && f.Value == place {
		panic("simulated panic of a callback")
	}
	if event.Resync {
		return
	}
	if f, on := b.find(EventPanics, runtime, event.Watched.Name); on && f.Value == place {
		panic("simulated panic of a callback for one object")
	}
}

var errMap = errors.New("the map function fails for this object")

// fail returns the present fault of the map function.
func (b *behaviour) fail(ctx context.Context, d core.Delivery) error {
	if _, on := b.find(MapSlow, d.Runtime, ""); on {
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if _, on := b.find(MapHangs, d.Runtime, ""); on {
		<-ctx.Done()
		return errMap
	}
	b.panicAt(inMapFunction, d.Runtime, &d.Event)
	if d.Event.Resync {
		return nil
	}
	if _, on := b.find(EventRefused, d.Runtime, d.Event.Watched.Name); on {
		return errMap
	}
	return nil
}

// retryAfterSeconds is the Retry-After of a gateway.
const retryAfterSeconds = 15

// intercept answers a request if the gateway is at fault, and reports whether it did.
func (b *behaviour) intercept(w http.ResponseWriter, r *http.Request) bool {
	if _, on := b.any(GatewayRefusesV3); on && strings.HasPrefix(r.URL.Path, "/v3/") {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, "RBAC: access denied")
		return true
	}
	if _, on := b.any(GatewayDrops); on {
		w.WriteHeader(http.StatusAccepted)
		return true
	}
	if f, on := b.any(GatewayLimits); on && r.ContentLength > int64(f.Value) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return true
	}
	if f, on := b.any(GatewayRetryAfter); on {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
		w.WriteHeader(f.Value)
		return true
	}
	if f, on := b.any(ManagerAway); on && managerOf(r) == b.plan.Managers[f.Index] {
		w.WriteHeader(f.Value)
		_, _ = fmt.Fprint(w, "no such upstream")
		return true
	}
	if f, on := b.any(GatewayStatus); on {
		w.WriteHeader(f.Value)
		_, _ = fmt.Fprint(w, "upstream trouble")
		return true
	}
	return false
}
