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

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Fleet is the freshness of all runtimes. Create one with [New]; its methods may be called concurrently.
type Fleet struct {
	opts Options

	// turn is held by the Start that reviews.
	turn chan struct{}

	mu        sync.Mutex
	records   map[key]*record
	managers  map[core.RuntimeID][]core.Manager
	resyncs   map[key]*resync // those to come
	served    map[core.Manager]struct{}
	tallies   map[core.Manager]*tally
	observers []func(Transition)
	// untold are the changes that the observers have not been told, and telling is whether somebody is about to.
	untold  []Transition
	telling bool
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
		resyncs:  make(map[key]*resync),
		served:   make(map[core.Manager]struct{}),
		tallies:  make(map[core.Manager]*tally),
		turn:     make(chan struct{}, 1),
	}, nil
}

// Observe takes in one request that peer sent to a manager. The caller has verified the peer. Refused
// are the events that the handler did not take: they count as heard, but a resync among them replaces
// none of the fleet's.
func (f *Fleet) Observe(peer core.Peer, manager core.Manager, batch core.Batch, refused core.EventErrors) {
	now := time.Now()

	f.mu.Lock()

	r := f.record(key{peer.ID, manager}, now)
	if r == nil {
		f.tally(manager).untracked++
		f.mu.Unlock()

		if f.opts.Hooks.Untracked != nil {
			f.opts.Hooks.Untracked(manager)
		}

		return
	}

	cause := r.observe(peer, &batch, &f.opts, now)

	switch {
	case resyncTaken(&batch, refused):
		delete(f.resyncs, r.key) // The runtime asks for it itself.
	case cause != "":
		f.schedule(r.key, cause, now)
	}

	f.review(r, now)
	f.mu.Unlock()
	f.tell()
}

// resyncTaken reports whether the handler took a resync of the whole runtime. A resync for one owner
// stands for that owner only.
func resyncTaken(batch *core.Batch, refused core.EventErrors) bool {
	for i := range batch.Events {
		e := &batch.Events[i]
		if e.Resync && e.Owner == (types.NamespacedName{}) && refused[i] == nil {
			return true
		}
	}

	return false
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

// review brings the state of a record up to date, and takes note of a change.
func (f *Fleet) review(r *record, now time.Time) {
	if r.lose(&f.opts, now) {
		f.schedule(r.key, CauseReplicaLost, now)
	}

	state, reason := r.judge(&f.opts, now)
	if state == r.state && reason == r.reason {
		return
	}

	change := Transition{From: r.state, Reason: r.reason}
	r.state, r.reason, r.since = state, reason, now
	change.To = r.status()
	f.untold = append(f.untold, change)
}

// tell calls the observers with what they have not been told, without the lock, so that they may ask the fleet. Who comes while another
// tells leaves it to him, so that they are told in order.
func (f *Fleet) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.telling {
		return
	}

	f.telling = true
	defer func() { f.telling = false }()

	for len(f.untold) > 0 {
		changes, observers := f.untold, f.observers
		f.untold = nil
		f.tellUnlocked(observers, changes)
	}
}

// tellUnlocked gives the lock back for as long as the observers are called, also when one of them panics.
func (f *Fleet) tellUnlocked(observers []func(Transition), changes []Transition) {
	f.mu.Unlock()
	defer f.mu.Lock()

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

// OnChange calls observe for every change of freshness from now on, one after the other and in their order. It must return at once, as a
// runtime's request may be waiting for it, and may ask the fleet. A runtime that falls silent is noticed within a second of the time, if
// Start runs. To be forgotten is no change.
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

// WithoutCA returns the runtimes of which a replica that is heard, by whichever manager, does not trust the certificate authority with that
// fingerprint yet, or has not said so, and those that are not heard at all: a server certificate signed by it would cut them off. A
// manager that a runtime does not speak to any more says nothing about it.
func (f *Fleet) WithoutCA(fingerprint string) []core.RuntimeID {
	heard := make(map[core.RuntimeID]bool)
	wary := make(map[core.RuntimeID]bool)

	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()

	for k, r := range f.records {
		heard[k.runtime] = heard[k.runtime] || slices.ContainsFunc(r.replicas, func(p *replica) bool { return p.speaks(&f.opts, now) })
		wary[k.runtime] = wary[k.runtime] || slices.ContainsFunc(r.replicas, func(p *replica) bool {
			return p.speaks(&f.opts, now) && !p.trusts(fingerprint)
		})
	}

	var missing []core.RuntimeID

	for runtime, speaks := range heard {
		if !speaks || wary[runtime] {
			missing = append(missing, runtime)
		}
	}

	slices.Sort(missing)

	return missing
}
