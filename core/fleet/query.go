package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Get returns the freshness of a runtime for a manager. A runtime that has sent no request is
// [Unknown].
func (f *Fleet) Get(runtime core.RuntimeID, manager core.Manager) Status {
	f.mu.Lock()
	defer f.mu.Unlock()

	r := f.records[key{runtime, manager}]
	if r == nil {
		return Status{Runtime: runtime, Manager: manager, State: Unknown}
	}
	return r.currentStatus(&f.opts, time.Now())
}

// LeadsSince returns the time since which a handler of [Receiver.Start] is ready. With leader
// election, it is the time since which this replica leads. It is zero while no handler is ready,
// and is accurate to a second.
func (f *Fleet) LeadsSince() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leads
}

// Range calls visit with the status of every known runtime for each of its managers, in no
// particular order, until visit returns false. It works on a snapshot: visit may block and may
// query the fleet.
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
		all = append(all, r.currentStatus(&f.opts, now))
	}
	return all
}

// RequeueAfter returns the polling interval of a runtime. The interval is [Options].PollFresh if
// the runtime is fresh for all its managers. It is PollUnproved if the runtime is fresh or unproved
// for all its managers, and PollOtherwise in all other cases. Up to a tenth is added or subtracted
// at random, so that runtimes are not polled together.
func (f *Fleet) RequeueAfter(runtime core.RuntimeID) time.Duration {
	if f.noteUnfed(time.Now()) {
		f.warnUnserved("")
	}
	wait := f.pollInterval(runtime)
	return wait + time.Duration((f.opts.Random()-0.5)*float64(wait)/5) // A tenth to either side.
}

// noteUnfed reports once that no Start has run for a minute. Without one there are no resyncs
// either.
func (f *Fleet) noteUnfed(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	if len(f.settled) > 0 || now.Sub(f.made) <= defaultPatience() {
		return false
	}
	f.settled[""] = true
	return true
}

// pollInterval lets the worst manager decide, because a runtime is polled for all its managers
// together.
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
		state, _ := f.records[key{runtime, manager}].judge(&f.opts, now)
		switch state {
		case Fresh:
		case Unproved:
			wait = f.opts.PollUnproved
		default:
			return f.opts.PollOtherwise
		}
	}

	return wait
}

// WithoutCA returns the runtimes that possibly do not trust the certificate authority with the
// given fingerprint. These are silent runtimes and runtimes with a replica that has not reported
// this authority. A server certificate of the authority would cut these runtimes off. Former
// managers of a runtime do not count.
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

// Revoked returns the runtimes with a revoked last sender, for each of their managers. A refused
// sender does not count as the last sender, so a stolen certificate does not mark a runtime with a
// new certificate as revoked.
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
			if p.heartbeat == nil || !slices.Contains(p.heartbeat.CAFingerprints, fingerprint) {
				return false
			}
			trusts = true
		}
	}
	return trusts
}
