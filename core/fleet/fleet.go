// Package fleet keeps what the control plane knows of the watch path of each runtime: whether a change there would be
// heard of, and if not, why. It asks for a resync where something may have been missed.
//
// It is fed by a listener and knows no transport. What it says is exact at the time it is asked; callbacks and resyncs
// need [Fleet.Start].
package fleet

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Fleet is the freshness of all runtimes. Create one with [New]; its methods may be called concurrently.
type Fleet struct {
	opts Options

	mu        sync.Mutex
	records   map[key]*record
	managers  map[core.RuntimeID][]core.Manager
	observers []func(Transition)
}

// New returns a fleet that knows no runtime yet. It fails on options that make no sense, and names them.
func New(opts Options) (*Fleet, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}

	return &Fleet{
		opts:     opts.withDefaults(),
		records:  make(map[key]*record),
		managers: make(map[core.RuntimeID][]core.Manager),
	}, nil
}

// Observe takes in what a runtime sent to a manager in one request, in its order. The caller has verified the sender. Events
// that the handler did not take belong in, too: they were heard.
func (f *Fleet) Observe(runtime core.RuntimeID, manager core.Manager, events []core.WatchEvent) {
	now := time.Now()

	f.mu.Lock()

	r := f.record(key{runtime, manager}, now)
	if r == nil {
		f.mu.Unlock()

		if f.opts.Hooks.Untracked != nil {
			f.opts.Hooks.Untracked(manager)
		}

		return
	}

	cause := r.hear(events, &f.opts, now)

	switch {
	case slices.ContainsFunc(events, func(e core.WatchEvent) bool { return e.Kind == core.KindResync }):
		r.resync = nil // The runtime asks for it itself.
	case cause != "":
		f.schedule(r, cause, now)
	}

	changes := f.review(nil, r, now)
	observers := f.observers
	f.mu.Unlock()
	f.tell(observers, changes)
}

// record returns what is known of k, and nil when there is no room for it.
func (f *Fleet) record(k key, now time.Time) *record {
	if r := f.records[k]; r != nil {
		return r
	}

	if len(f.records) >= f.opts.MaxStatuses {
		return nil
	}

	r := &record{key: k, state: Unknown, since: now}
	f.records[k] = r
	f.managers[k.runtime] = append(f.managers[k.runtime], k.manager)

	return r
}

// review brings the state of a record up to date, and adds the change to those given, if there is one.
func (f *Fleet) review(changes []Transition, r *record, now time.Time) []Transition {
	if r.lose(&f.opts, now) {
		f.schedule(r, CauseReplicaLost, now)
	}

	state, reason := r.judge(&f.opts, now)
	if state == r.state && reason == r.reason {
		return changes
	}

	change := Transition{From: r.state, Reason: r.reason}
	r.state, r.reason, r.since = state, reason, now
	change.To = r.status()

	return append(changes, change)
}

// tell calls the observers, without the lock, so that they may ask the fleet.
func (f *Fleet) tell(observers []func(Transition), changes []Transition) {
	for _, change := range changes {
		f.opts.Logger.Info("freshness of a runtime changed",
			slog.String("runtime", string(change.To.Runtime)), slog.String("manager", string(change.To.Manager)),
			slog.String("from", string(change.From)), slog.String("to", string(change.To.State)),
			slog.String("reason", change.To.Reason))

		for _, observe := range observers {
			observe(change)
		}
	}
}

// OnChange calls observe for every change of freshness from now on, concurrently for different runtimes. It must return at
// once, and may ask the fleet. A runtime that falls silent is noticed within a second of the time, if Start runs.
func (f *Fleet) OnChange(observe func(Transition)) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.observers = append(slices.Clone(f.observers), observe)
}

// Get returns the freshness of a runtime for a manager. One that was never heard is [Unknown].
func (f *Fleet) Get(runtime core.RuntimeID, manager core.Manager) Status {
	f.mu.Lock()
	defer f.mu.Unlock()

	r := f.records[key{runtime, manager}]
	if r == nil {
		return Status{Runtime: runtime, Manager: manager, State: Unknown}
	}

	return f.current(r, time.Now())
}

// current is the status as of now, even if nobody has reviewed it since.
func (f *Fleet) current(r *record, now time.Time) Status {
	s := r.status()
	if state, reason := r.judge(&f.opts, now); state != s.State || reason != s.Reason {
		s.State, s.Reason, s.Since = state, reason, now
	}

	return s
}

// Range calls visit with the status of every runtime that is known for each of its managers, in no order, until it returns false. It
// works on a snapshot: visit may take its time and ask the fleet.
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

// Counts returns how many runtimes are in each state, for each reason and manager. It is cheaper than [Fleet.Range].
func (f *Fleet) Counts() map[Group]int {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	counts := make(map[Group]int)

	for k, r := range f.records {
		state, reason := r.judge(&f.opts, now)
		counts[Group{k.manager, state, reason}]++
	}

	return counts
}

// Group is what runtimes are counted by.
type Group struct {
	Manager core.Manager
	State   State
	Reason  string
}

// RequeueAfter returns when an operator should look at a runtime even if it hears nothing: after a long time while the
// runtime is fresh for every manager that it was heard for, after a short one otherwise. Both are spread by a tenth, so that
// runtimes are not looked at together.
func (f *Fleet) RequeueAfter(runtime core.RuntimeID) time.Duration {
	wait := f.opts.PollOtherwise
	if f.fresh(runtime) {
		wait = f.opts.PollFresh
	}

	return wait + time.Duration((f.opts.Random()-0.5)*float64(wait)/5) //nolint:mnd // A tenth to either side.
}

func (f *Fleet) fresh(runtime core.RuntimeID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	managers := f.managers[runtime]

	for _, manager := range managers {
		if state, _ := f.records[key{runtime, manager}].judge(&f.opts, now); state != Fresh {
			return false
		}
	}

	return len(managers) > 0
}

// WithoutCA returns the runtimes of which a replica that is heard does not trust the certificate authority with that
// fingerprint yet, or has not said so: a server certificate signed by it would cut them off.
func (f *Fleet) WithoutCA(fingerprint string) []core.RuntimeID {
	var missing []core.RuntimeID

	f.Range(func(s Status) bool {
		trusts := len(s.Replicas) > 0 && !slices.ContainsFunc(s.Replicas, func(p Replica) bool {
			return p.Heartbeat == nil || !slices.Contains(p.Heartbeat.CAFingerprints, fingerprint)
		})
		if !trusts {
			missing = append(missing, s.Runtime)
		}

		return true
	})
	slices.Sort(missing)

	return slices.Compact(missing)
}

// Forget removes what is known of a runtime, and the resyncs that were to come. An operator calls it when the runtime is gone.
func (f *Fleet) Forget(runtime core.RuntimeID) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, manager := range f.managers[runtime] {
		delete(f.records, key{runtime, manager})
	}

	delete(f.managers, runtime)
}

// remove forgets one record.
func (f *Fleet) remove(k key) {
	delete(f.records, k)

	managers := slices.DeleteFunc(f.managers[k.runtime], func(m core.Manager) bool { return m == k.manager })
	if len(managers) == 0 {
		delete(f.managers, k.runtime)

		return
	}

	f.managers[k.runtime] = managers
}
