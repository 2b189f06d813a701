// Package fleet tracks the freshness of the watch path of each runtime: whether a change there
// would reach the control plane, and if not, why. It requests a resync when a change may have been
// missed.
//
// A listener reports requests to it. The package depends on no transport. Queries are exact at the
// time of the call. Callbacks and resyncs require [Receiver.Start].
//
// A [Fleet] locks and delivers; its records decide. An observation passes receiver.go and fleet.go.
// The record notes the observation (observe.go) with the replica that sent it (replica.go) and
// decides on the state (judge.go). The fleet then schedules a resync (resyncs.go, deliver.go) and
// calls the observers (observers.go).
package fleet

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Fleet holds the freshness of all runtimes. Create one with [New]. Its methods may be called
// concurrently.
type Fleet struct {
	opts  Options
	lines *slog.Logger // about changes.
	made  time.Time

	mu sync.Mutex // guards all fields below.

	// The runtimes.
	records   map[key]*record
	managers  map[core.RuntimeID][]core.Manager
	expected  map[key]time.Time // without a record, since when.
	forgotten map[core.RuntimeID]time.Time
	resyncs   resyncs
	tallies   tallies

	// The handlers of the calls of Start that run.
	served  map[core.Manager]core.Handler
	leads   time.Time             // since when a handler is ready, zero while none is.
	settled map[core.Manager]bool // that were served, or are logged as not served.

	// The observers, and the changes that they have not got.
	observers []func(Transition)
	changes   []Transition
	notifying bool
}

// New returns a fleet without runtimes. If options are invalid, the error names them.
func New(opts Options) (*Fleet, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}

	opts = opts.withDefaults()
	return &Fleet{
		opts:      opts,
		lines:     pacedlog.New(opts.Logger, 10*time.Second, "runtime", "manager", "from", "to", "reason"),
		made:      time.Now(),
		records:   make(map[key]*record),
		managers:  make(map[core.RuntimeID][]core.Manager),
		expected:  make(map[key]time.Time),
		forgotten: make(map[core.RuntimeID]time.Time),
		resyncs:   newResyncs(),
		tallies:   make(tallies),
		served:    make(map[core.Manager]core.Handler),
		settled:   make(map[core.Manager]bool),
	}, nil
}

// observeRequest takes in a request. It reports whether the freshness of the runtime may have
// changed.
func (f *Fleet) observeRequest(
	peer core.Peer, manager core.Manager, batch *core.Batch, refused core.EventErrors, now time.Time,
) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.isProbe(key{peer.ID, manager}, batch) || now.Sub(f.forgotten[peer.ID]) < straggler {
		return true
	}

	r := f.ensureRecord(key{peer.ID, manager}, now)
	if r == nil {
		f.tallies.ensureTally(manager).untracked++
		return false
	}

	f.tallies.ensureTally(r.manager).events += int64(len(batch.Events))
	cause := r.observeRequest(peer, batch, refused, &f.opts, now)

	switch {
	case hasResync(batch, refused):
		f.resyncs.cancelResync(r.key) // The runtime asks for it itself.
	case cause != "":
		f.scheduleResync(r.key, cause, now)
	}

	f.reviewRecord(r, now)

	return true
}

// isProbe reports whether the batch only checks the path. It is the last heartbeat of an unknown
// epoch without events. An agent begins its epoch with a resync.
func (f *Fleet) isProbe(k key, batch *core.Batch) bool {
	heartbeat := batch.Heartbeat
	if heartbeat == nil || !heartbeat.Leaving || heartbeat.Sequence > 0 {
		return false
	}
	if len(batch.Events) > 0 || batch.Epoch == "" {
		return false
	}

	r := f.records[k]
	return r == nil || r.replicaOf(batch.Epoch) == nil
}

// ensureRecord returns the record of a runtime, and makes it if necessary. It returns nil if there
// is no room.
func (f *Fleet) ensureRecord(k key, now time.Time) *record {
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
		r.expectedSince = now
	}

	f.records[k] = r
	f.managers[k.runtime] = append(f.managers[k.runtime], k.manager)
	return r
}

// removeRecord removes a runtime for one manager, with its resync to come.
func (f *Fleet) removeRecord(k key) {
	delete(f.records, k)
	f.resyncs.cancelResync(k)

	managers := slices.DeleteFunc(f.managers[k.runtime], func(m core.Manager) bool { return m == k.manager })
	if len(managers) == 0 {
		delete(f.managers, k.runtime)
		return
	}
	f.managers[k.runtime] = managers
}

// reviewRecord lets a record take in the time that has passed and keeps its decisions for the
// observers and for deliver.go.
func (f *Fleet) reviewRecord(r *record, now time.Time) {
	cause, change, changed := r.review(&f.opts, now)
	if cause != "" {
		f.scheduleResync(r.key, cause, now)
	}
	if changed {
		f.changes = append(f.changes, change)
	}
}

// scheduleResync requests a resync, unless there is one to come.
func (f *Fleet) scheduleResync(k key, cause hook.ResyncCause, now time.Time) {
	if f.resyncs.isScheduled(k) {
		return
	}
	wait := f.opts.Random() * float64(f.opts.ResyncJitter)
	f.resyncs.scheduleResync(k, cause, now.Add(time.Duration(wait)))
}
