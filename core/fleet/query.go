package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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

// trusts reports whether some replica of the runtime is not silent, and all such replicas have
// reported the authority.
func (f *Fleet) trusts(runtime core.RuntimeID, fingerprint string, now time.Time) (trusts bool) {
	for _, manager := range f.managers[runtime] {
		for _, p := range f.records[key{runtime, manager}].replicas {
			if !p.isSpeaking(now) {
				continue
			}
			if !p.trusts(fingerprint) {
				return false
			}
			trusts = true
		}
	}
	return trusts
}
