package simulation

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

// promise returns the expectations of the plan.
func (p *Plan) promise() oracle.Promise {
	promise := oracle.Promise{
		Runtimes: make(map[string]oracle.Runtime), Managers: p.Managers, Refused: make(map[string]bool), HandedBack: make(map[string]bool),
		Expired: make(map[string]oracle.Window), Followers: p.Operators - p.replicas(), CleanStops: p.CleanStops,
		NATS: p.NATS, Holds: p.NATS && p.hasAny(MapHangs), Replicas: p.replicas(),
		NewLeaders: p.hasAny(OperatorKilled, LeaderChanged), FalseAcks: p.hasAny(GatewayDrops),
		RequestsRepeat: p.hasAny(GatewayRepeats), Rotates: p.hasAny(KeysRotated), Loud: p.Loud, Short: p.isShort(), ReviewMemoryFull: p.hasAny(StrangersLarge),
		AnswersLost: p.hasAny(LinksCut, LinksSlow, LinksSilent, AnswersLost, GatewayRepeats),
		Rate:        p.Rate, Burst: burstOf(p.Rate), Backlog: p.backlog(),
	}
	for i := range p.Runtimes {
		r := &p.Runtimes[i]
		promise.Runtimes[r.Name] = oracle.Runtime{
			Lies: r.Lies != 0, Callers: r.Callers, Panics: p.panics(i), Expected: p.expects(r),
			Numbered: r.Contract == contract.V3, Canary: r.Canary, Rare: r.Rare, Overflows: p.overShare(i),
			FallsBack: r.Fallback && p.hasAny(GatewayRefusesV3, GatewayStatus, ManagerAway) || p.hasAny(AgentDowngraded),
			Learns:    r.Learns, Loses: p.loses(i), Invented: r.Learns && p.hasAny(ManagersInvented),
			Refused: p.Measured && i > 0 && len(p.Faults) > 0 && p.Faults[0].Runtime == i,
		}
	}
	for i := range p.Faults {
		p.add(&promise, &p.Faults[i])
	}
	return promise
}

// add adds a fault to a promise.
func (p *Plan) add(promise *oracle.Promise, f *Fault) {
	name := p.Runtimes[f.Runtime].Name
	switch {
	case f.Kind == KeysRotated: // It must not disturb traffic.
		return
	case f.refusesEvent():
		promise.Refused[p.object(f.Runtime, f.Index)] = true
		promise.HandedBack[p.object(f.Runtime, f.Index)] = f.Kind != EventPanics
		return
	case f.Kind == AgentGone, f.Kind == AgentLeft, f.Kind == GatewayRefusesV3 && f.For == 0: // The loss is noticed within a minute.
		promise.Windows = append(promise.Windows, oracle.Window{From: f.At, To: f.At + time.Minute})
	case f.isForEver():
		return
	case f.Kind == StrangersSilent, f.Kind == StrangersLarge, f.Kind == MessagesMalformed: // The strict bounds hold.
	case f.Kind == ManagerAway: // They hold for the other manager.
		promise.Windows = append(promise.Windows, oracle.Window{From: f.At, To: f.At + f.For, Manager: p.Managers[f.Index]})
	case f.Kind == CertificateExpired:
		promise.Expired[name] = oracle.Window{From: f.At, To: f.At + f.For}
		promise.Windows = append(promise.Windows, oracle.Window{From: f.At, To: f.At + f.For, Refuses: name, Renews: true})
	case f.Kind == LinksRefused:
		promise.Windows = append(promise.Windows, oracle.Window{From: f.At, To: f.At + f.For, Refuses: name})
	default:
		promise.Windows = append(promise.Windows, oracle.Window{From: f.At, To: f.At + f.For + f.after(), Settles: f.after()})
	}
	if f.refusesEach() {
		promise.Refusals++
	}
	if f.Kind == RuntimeDeleted {
		promise.Deletions++
	}
	promise.Faults++
}

// replicas returns the number of replicas that work.
func (p *Plan) replicas() int {
	if p.Active {
		return p.Operators
	}
	return 1
}

// isShort reports whether no runtime can become silent.
func (p *Plan) isShort() bool {
	return !slices.ContainsFunc(p.Faults, func(f Fault) bool {
		return f.For == 0 || f.For > 5*time.Second ||
			!slices.Contains([]FaultKind{AgentKilled, LinksCut, LinksRefused, LinksSilent, OperatorKilled}, f.Kind)
	})
}

// expects reports whether the agent of a runtime sends heartbeats to each manager from its start on.
func (p *Plan) expects(r *RuntimePlan) bool {
	return r.Lies == 0 && !r.forgets() && r.Contract == contract.V3 && !r.Fallback && !p.hasAny(AgentDowngraded)
}

// panics reports whether the verifier panics for all of a runtime.
func (p *Plan) panics(runtime int) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool {
		return f.Kind == CallbackPanics && f.Runtime == runtime && f.panicsInVerifier()
	})
}

// loses reports whether an agent of a runtime is killed and never replaced.
func (p *Plan) loses(runtime int) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == AgentGone && f.Runtime == runtime })
}

func (f *Fault) isForEver() bool {
	switch f.Kind {
	case ManagerUnknown, ManagersInvented, AgentGone, AgentLeft, GatewayLimits:
		return true
	case GatewayRefusesV3:
		return f.For == 0
	default:
		return f.refusesEvent()
	}
}

func (f *Fault) refusesEvent() bool {
	return f.Kind == EventRefused || f.Kind == EventForbidden || f.Kind == EventPanics
}

// refusesEach reports whether a gateway refuses each event for itself, and not the manager.
func (f *Fault) refusesEach() bool {
	return f.Kind == GatewayStatus &&
		slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}, f.Value)
}

// after returns the time for which a fault has effects after its end.
func (f *Fault) after() time.Duration {
	switch f.Kind {
	case OperatorKilled, LeaderChanged:
		return leaseTime
	case AgentCrashes, AgentReplaced, AgentPaused: // An orderly stop takes up to 10 s.
		return 11 * time.Second
	case GatewayRepeats:
		return time.Duration(f.Value)*time.Millisecond + time.Second
	case CallersRotated:
		return callersSettle
	case EtcdRestored: // The canary notices it.
		return canaryMisses
	case PathsWrong: // The share of the runtime is used up for a while.
		return 10 * time.Second
	default:
		return 0
	}
}

func (p *Plan) hasAny(kinds ...FaultKind) bool {
	for i := range p.Faults {
		if slices.Contains(kinds, p.Faults[i].Kind) {
			return true
		}
	}
	return false
}

// calm returns the time from the last fault to the end.
func (p *Plan) calm() time.Duration {
	if p.Measured {
		return time.Minute
	}
	if len(p.promise().Refused) > 0 {
		return 9 * time.Minute
	}
	return 3 * time.Minute
}

// backlog returns the time of one worker for all objects, 0 for few.
func (p *Plan) backlog() time.Duration {
	const few = 20
	objects := 0
	for i := range p.Runtimes {
		objects += p.Runtimes[i].Objects
	}
	if objects <= few {
		return 0
	}
	return time.Duration(objects) * cmp.Or(p.Work, reconcileTime)
}

// overShare returns the managers with more keys than their share of MaxKeys. Their events may be dropped.
func (p *Plan) overShare(runtime int) map[core.Manager]bool {
	r := &p.Runtimes[runtime]
	if r.MaxKeys == 0 {
		return nil
	}
	overShare := make(map[core.Manager]bool)
	for _, manager := range p.Managers {
		overShare[manager] = p.written(runtime, manager)*p.lanes() > r.MaxKeys
	}
	return overShare
}

// lanes returns the number of managers that share MaxKeys.
func (p *Plan) lanes() int {
	const mostManagers = 100 // The default of the outbox.
	switch {
	case p.hasAny(ManagersInvented):
		return mostManagers
	case p.hasAny(ManagerUnknown):
		return len(p.Managers) + 1
	default:
		return len(p.Managers)
	}
}

// written returns the number of keys of the objects that a manager watches and that are written. An event without a
// valid owner has a key of its own.
func (p *Plan) written(runtime int, manager core.Manager) int {
	type key struct {
		object   int
		badOwner bool
	}
	keys := make(map[key]bool)
	for i := range p.Writes {
		if w := &p.Writes[i]; w.Runtime == runtime && w.Kind != OtherManager && p.isWatched(teamOf(w.Object), manager) {
			keys[key{w.Object, w.Kind == BadOwner}] = true
		}
	}
	return len(keys)
}

func burstOf(rate int) int { return 2 * rate }
