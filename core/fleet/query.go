package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// State is the freshness of the watch path of one runtime for one manager.
type State string

const (
	// Unknown means that no heartbeat came yet: the runtime is new, or its agent speaks a contract
	// without heartbeats.
	Unknown State = "unknown"
	// Fresh means that a change would reach the control plane. Heartbeats come, and the API server
	// of the runtime called the agent lately, for its canary or for a review.
	Fresh State = "fresh"
	// Unproved means that heartbeats come, and that nothing shows whether the API server calls the
	// agent.
	Unproved State = "unproved"
	// Stale means that the runtime is silent.
	Stale State = "stale"
	// Degraded means that changes are missed, or soon will be, for a reason.
	Degraded State = "degraded"
)

// Condition is a state with its reason.
type Condition struct {
	State  State
	Reason Reason
}

// Status is the freshness of one runtime for one manager.
type Status struct {
	Runtime core.RuntimeID `json:"runtime"`
	Manager core.Manager   `json:"manager"`
	State   State          `json:"state"`
	// Reason is why a runtime is degraded, or stale if that is known. It is empty otherwise.
	Reason Reason `json:"reason,omitempty"`
	// Refused is the reason of the verifier, such as [core.ReasonSANMismatch]. It is empty after a
	// request that was not refused, or after 100 s without a refusal.
	Refused core.Reason `json:"refused,omitempty"`
	// Since is the time of the last change of State or Reason.
	Since time.Time `json:"since"`
	// LastSeen is the time of the last event or heartbeat, zero if there was none.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// Replicas are the agent processes that are not silent. Those of a stale runtime are the last
	// that were observed, with their last heartbeats.
	Replicas []Replica `json:"replicas,omitempty"`
}

// Replica is one agent process.
type Replica struct {
	// Epoch is one life of the process.
	Epoch string `json:"epoch"`
	// Sequence is the highest number that was received.
	Sequence uint64 `json:"sequence"`
	// LastSeen is the time of the last event or heartbeat.
	LastSeen time.Time `json:"lastSeen"`
	// Proved is the last time at which the API server called the agent, zero if that is not known.
	Proved time.Time `json:"proved,omitzero"`
	// CertificateExpiry is that of the verified client certificate.
	CertificateExpiry time.Time `json:"certificateExpiry,omitzero"`
	// ClockSkew is how far the clock of the agent is ahead of the clock of this process, in whole
	// seconds. It is negative if the agent's clock is behind. A delayed heartbeat looks like a
	// clock that is behind, so the skew is that of the less delayed of the last two heartbeats.
	ClockSkew time.Duration `json:"-"`
	// Heartbeat is the last one, nil when none came yet. It must not be changed.
	Heartbeat *core.Heartbeat `json:"heartbeat,omitempty"`
}

// Get returns the freshness of a runtime for a manager. A runtime without a request is [Unknown].
func (f *Fleet) Get(runtime core.RuntimeID, manager core.Manager) Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.records[key{runtime, manager}]
	if r == nil {
		return Status{Runtime: runtime, Manager: manager, State: Unknown}
	}
	return f.current(r, time.Now())
}

// current is the status as of now, also when no review has found it yet.
func (f *Fleet) current(r *record, now time.Time) Status {
	s := r.status()
	s.Refused = r.refusal(now)
	if state, reason := r.judge(&f.opts, now); state != s.State || reason != s.Reason {
		s.State, s.Reason, s.Since = state, reason, now
	}
	return s
}

// LeadsSince returns the time since which a handler of [Receiver.Start] is ready. With leader
// election, it is the time since which this replica leads. It is zero while no handler is ready,
// and exact to a second.
func (f *Fleet) LeadsSince() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads
}

// Range calls visit with the status of every known runtime for each of its managers, in no order,
// until visit returns false. It works on a snapshot: visit may block and may query the fleet.
func (f *Fleet) Range(visit func(Status) bool) {
	for _, s := range f.snapshot() {
		if !visit(s) {
			return
		}
	}
}

func (f *Fleet) snapshot() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	all := make([]Status, 0, len(f.records))
	for _, r := range f.records {
		all = append(all, f.current(r, now))
	}
	return all
}

// RequeueAfter returns the polling interval of a runtime. It is [Options].PollFresh when it is
// fresh for all its managers, PollUnproved when it is fresh or unproved, and PollOtherwise in all
// other states. Up to a tenth is added or taken off at random, so that runtimes are not polled
// together.
func (f *Fleet) RequeueAfter(runtime core.RuntimeID) time.Duration {
	if f.isUnfed(time.Now()) {
		f.warnUnserved("") // None is.
	}
	wait := f.pollInterval(runtime)
	return wait + time.Duration((f.opts.Random()-0.5)*float64(wait)/5) // A tenth to either side.
}

// isUnfed reports once that no Start has run for a minute. Without one there are no resyncs either.
func (f *Fleet) isUnfed(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	unfed := len(f.settled) == 0 && now.Sub(f.made) > patience(nil)
	if unfed {
		f.settled[""] = true
	}
	return unfed
}

func (f *Fleet) pollInterval(runtime core.RuntimeID) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	managers := f.managers[runtime]

	if len(managers) == 0 {
		return f.opts.PollOtherwise
	}

	wait := f.opts.PollFresh

	for _, manager := range managers {
		switch state, _ := f.records[key{runtime, manager}].judge(&f.opts, now); state {
		case Fresh:
		case Unproved:
			wait = f.opts.PollUnproved
		default:
			return f.opts.PollOtherwise
		}
	}

	return wait
}

// WithoutCA returns the runtimes that may not trust the certificate authority with that
// fingerprint. These are silent runtimes, and those with a replica that has not reported it. A
// server certificate of that authority would cut them off. Former managers of a runtime do not
// count.
func (f *Fleet) WithoutCA(fingerprint string) []core.RuntimeID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var missing []core.RuntimeID
	for runtime := range f.managers {
		if !f.trusts(runtime, fingerprint, time.Now()) {
			missing = append(missing, runtime)
		}
	}
	slices.Sort(missing)
	return missing
}

// Revoked returns the runtimes of which the last senders are revoked, for each of their managers. A
// sender that is refused does not count as the last one, so a stolen certificate does not make a
// runtime with a new one revoked.
func (f *Fleet) Revoked() []core.RuntimeID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var revoked []core.RuntimeID
	for runtime, managers := range f.managers {
		isOther := func(manager core.Manager) bool { return !f.records[key{runtime, manager}].isRevoked() }
		if len(managers) > 0 && !slices.ContainsFunc(managers, isOther) {
			revoked = append(revoked, runtime)
		}
	}
	slices.Sort(revoked)
	return revoked
}

// trusts is true if some replica is not silent, and all such have reported the authority.
func (f *Fleet) trusts(runtime core.RuntimeID, fingerprint string, now time.Time) (trusts bool) {
	for _, manager := range f.managers[runtime] {
		for _, p := range f.records[key{runtime, manager}].replicas {
			if !p.isSpeaking(now) {
				continue
			}
			if p.beat == nil || !slices.Contains(p.beat.CAFingerprints, fingerprint) {
				return false
			}
			trusts = true
		}
	}
	return trusts
}

// Summary sums up the runtimes of one manager. Metrics are made of it.
type Summary struct {
	// Runtimes is the number of runtimes in each state, for each reason.
	Runtimes map[Condition]int
	// Pending is the number of events that wait in the runtimes, and OldestPending the age of the
	// oldest, as of the last heartbeats.
	Pending       int64
	OldestPending time.Duration
	// FirstExpiry is the earliest expiry of a verified client certificate, zero if none is known. A
	// silent runtime counts if its certificate expired when it became silent.
	FirstExpiry time.Time
	// Versions is the number of runtimes with each version of the agent, without silent agents and
	// those that name no version. A runtime with two versions counts for each of them. At most
	// eight versions have a key, those with the most runtimes. [OtherVersions] counts the others.
	Versions map[string]int
	// ClockSkew is the largest difference between the clock of an agent and the clock of this
	// process, whichever is ahead.
	ClockSkew time.Duration

	// Resyncs counts the delivered resyncs that the fleet asked for, by cause. ResyncsToCome are
	// not delivered yet.
	Resyncs       map[hook.ResyncCause]int64
	ResyncsToCome int
	// Untracked counts the requests of runtimes beyond [Options].MaxStatuses.
	Untracked int64
	// Events counts the events of all other requests, with those that were refused or sent again.
	Events int64
}

// mostPending bounds the number that one replica can claim: it is foreign input, and added up.
const mostPending = 1 << 32

type tally struct {
	resyncs   map[hook.ResyncCause]int64
	untracked int64
	events    int64
}

func (f *Fleet) tally(manager core.Manager) *tally {
	t := f.tallies[manager]
	if t == nil {
		t = &tally{resyncs: make(map[hook.ResyncCause]int64)}
		f.tallies[manager] = t
	}
	return t
}

// Summaries returns the summary of each manager, all at one moment: those with runtimes, and
// those that Start serves while a handler is ready. The cost grows with the runtimes.
func (f *Fleet) Summaries() map[core.Manager]*Summary {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	all := make(map[core.Manager]*Summary)
	of := func(manager core.Manager) *Summary {
		if all[manager] == nil {
			all[manager] = &Summary{
				Runtimes: make(map[Condition]int), Resyncs: make(map[hook.ResyncCause]int64), Versions: make(map[string]int),
			}
		}
		return all[manager]
	}

	for k, r := range f.records {
		of(k.manager).add(r, &f.opts, now)
	}

	for k := range f.resyncs {
		of(k.manager).ResyncsToCome++
	}

	for manager, t := range f.tallies {
		s := of(manager)
		s.Resyncs, s.Untracked, s.Events = maps.Clone(t.resyncs), t.untracked, t.events
	}

	if !f.leads.IsZero() { // Otherwise no runtime sends to this replica.
		for manager := range f.served {
			of(manager)
		}
	}

	for _, s := range all {
		s.Versions = boundVersions(s.Versions)
	}

	return all
}

func (s *Summary) add(r *record, opts *Options, now time.Time) {
	state, reason := r.judge(opts, now)
	s.Runtimes[Condition{state, reason}]++
	for _, version := range r.versions(now) {
		s.Versions[version]++
	}
	for _, p := range r.replicas {
		expiry := p.certificate.notAfter
		if p.isAlive(now) {
			s.Pending += min(max(p.beat.Pending, 0), mostPending)
			s.OldestPending = max(s.OldestPending, p.beat.OldestPending)
			s.ClockSkew = max(s.ClockSkew, p.clock.skew().Abs())
		} else if state != Stale || !p.expired(now) {
			continue
		}
		if !expiry.IsZero() && (s.FirstExpiry.IsZero() || expiry.Before(s.FirstExpiry)) {
			s.FirstExpiry = expiry
		}
	}
}
