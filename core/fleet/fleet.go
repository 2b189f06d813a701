// Package fleet keeps the freshness of the watch path of each runtime: whether a change there would
// reach the control plane, and if not, why. It asks for a resync where a change may be missed.
//
// A listener feeds it. It knows no transport. Queries are exact at the time of the call; callbacks
// and resyncs need [Fleet.Start].
//
// An observation passes record.go and replica.go, and judge.go decides on the state. It may lead to
// a resync (deliver.go) and to a call of the observers (observers.go).
package fleet

import (
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Fleet is the freshness of all runtimes. Create one with [New]. Its methods may be called
// concurrently.
type Fleet struct {
	opts Options

	// reviewing is held by the one Start that reviews.
	reviewing chan struct{}

	mu        sync.Mutex
	records   map[key]*record
	managers  map[core.RuntimeID][]core.Manager
	resyncs   map[key]*resync   // to come
	expected  map[key]time.Time // without a record, since when
	forgotten map[core.RuntimeID]time.Time
	served    map[core.Manager]core.Handler
	tallies   map[core.Manager]*tally
	observers []func(Transition)
	changes   []Transition // that the observers have not got
	notifying bool
	lines     pace
	made      time.Time
	settled   map[core.Manager]bool // that were served, or are logged as not served
}

// New returns a fleet that knows no runtime yet. It fails on invalid options and names them.
func New(opts Options) (*Fleet, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Fleet{
		opts:      opts.withDefaults(),
		records:   make(map[key]*record),
		managers:  make(map[core.RuntimeID][]core.Manager),
		resyncs:   make(map[key]*resync),
		expected:  make(map[key]time.Time),
		forgotten: make(map[core.RuntimeID]time.Time),
		served:    make(map[core.Manager]core.Handler),
		tallies:   make(map[core.Manager]*tally),
		settled:   make(map[core.Manager]bool),
		reviewing: make(chan struct{}, 1),
		made:      time.Now(),
	}, nil
}

// Observe takes in one request that peer sent to a manager. The caller has verified the peer.
// Refused has the events that the handler did not take: they are signs of life, too. An error with
// a method Kept() bool that returns true means that the transport keeps the event, and the sender
// does not. A resync stands in for it. Observe keeps nothing of the batch, and calls the observers
// of [Fleet.OnChange] when the freshness changes.
func (f *Fleet) Observe(peer core.Peer, manager core.Manager, batch core.Batch, refused core.EventErrors) {
	now := time.Now()
	if f.observe(peer, manager, &batch, refused, now) {
		f.notify()
	}
}

// observe reports whether the runtime is tracked.
func (f *Fleet) observe(
	peer core.Peer, manager core.Manager, batch *core.Batch, refused core.EventErrors, now time.Time,
) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.isProbe(key{peer.ID, manager}, batch) || now.Sub(f.forgotten[peer.ID]) < straggler {
		return true
	}

	r := f.record(key{peer.ID, manager}, now)
	if r == nil {
		f.tally(manager).untracked++
		return false
	}

	f.tally(r.manager).events += int64(len(batch.Events))
	cause := r.observe(peer, batch, refused, &f.opts, now)

	switch {
	case resyncTaken(batch, refused):
		delete(f.resyncs, r.key) // The runtime asks for it itself.
		r.resendsItself(batch.Epoch)
	case cause != "":
		f.schedule(r.key, cause, now)
	}

	f.review(r, now)

	return true
}

// isProbe reports whether the batch only checks the path. It is the last heartbeat of an unknown
// epoch without events. An agent begins its epoch with a resync.
func (f *Fleet) isProbe(k key, batch *core.Batch) bool {
	beat := batch.Heartbeat
	if beat == nil || !beat.Leaving || beat.Sequence > 0 || len(batch.Events) > 0 || batch.Epoch == "" {
		return false
	}
	r := f.records[k]
	return r == nil || r.find(batch.Epoch) == nil
}

// resyncTaken reports whether the handler took a resync of the whole runtime. A resync for one
// owner stands for that owner only.
func resyncTaken(batch *core.Batch, refused core.EventErrors) bool {
	for i := range batch.Events {
		e := &batch.Events[i]
		if e.Resync && e.Owner == (types.NamespacedName{}) && refused[i] == nil {
			return true
		}
	}
	return false
}

// record returns the record of k, and nil when there is no room for it.
func (f *Fleet) record(k key, now time.Time) *record {
	if r := f.records[k]; r != nil {
		return r
	}
	if len(f.records) >= f.opts.MaxStatuses {
		return nil
	}
	k.manager = core.Manager(strings.Clone(string(k.manager))) // It may be cut from a long request line.
	r := &record{key: k, state: Unknown, since: now}
	if _, expected := f.expected[k]; expected {
		delete(f.expected, k)
		r.expected = now
	}
	f.records[k] = r
	f.managers[k.runtime] = append(f.managers[k.runtime], k.manager)
	return r
}

// review brings the state of a record up to date, and notes a change for the observers.
func (f *Fleet) review(r *record, now time.Time) {
	for _, p := range r.replicas {
		p.paths.review(now)
	}
	if r.lose(now) {
		f.schedule(r.key, causeReplicaLost, now)
	}
	if cause := r.takeResend(now); cause != "" {
		f.schedule(r.key, cause, now)
	}
	state, reason := r.judge(&f.opts, now)
	if state == r.state && reason == r.reason {
		return
	}
	change := Transition{From: r.state, Reason: r.reason}
	r.state, r.reason, r.since = state, reason, now
	change.To = r.status()
	f.changes = append(f.changes, change)
}
