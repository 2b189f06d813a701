// Package fleet keeps the freshness of the watch path of each runtime: whether a change there would
// reach the control plane, and if not, why. It asks for a resync where a change may be missed.
//
// A listener feeds it. It knows no transport. Queries are exact at the time of the call; callbacks
// and resyncs need [Receiver.Start].
//
// An observation passes record.go and replica.go, and judge.go decides on the state. It may lead to
// a resync (deliver.go) and to a call of the observers (observers.go).
package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Fleet is the freshness of all runtimes. Create one with [New]. Its methods may be called
// concurrently.
type Fleet struct {
	opts Options

	mu        sync.Mutex
	records   map[key]*record
	managers  map[core.RuntimeID][]core.Manager
	resyncs   map[key]*resync   // to come
	delivers  map[key]bool      // a resync is with its handler
	expected  map[key]time.Time // without a record, since when
	forgotten map[core.RuntimeID]time.Time
	served    map[core.Manager]core.Handler
	leads     time.Time // since when a handler is ready, zero while none is
	tallies   map[core.Manager]*tally
	observers []func(Transition)
	changes   []Transition // that the observers have not got
	notifying bool
	lines     *slog.Logger // about changes
	made      time.Time
	settled   map[core.Manager]bool // that were served, or are logged as not served
}

// New returns a fleet that knows no runtime yet. It fails on invalid options and names them.
func New(opts Options) (*Fleet, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	return &Fleet{
		opts:      opts,
		lines:     pacedlog.New(opts.Logger, 10*time.Second, "runtime", "manager", "from", "to", "reason"),
		records:   make(map[key]*record),
		managers:  make(map[core.RuntimeID][]core.Manager),
		resyncs:   make(map[key]*resync),
		delivers:  make(map[key]bool),
		expected:  make(map[key]time.Time),
		forgotten: make(map[core.RuntimeID]time.Time),
		served:    make(map[core.Manager]core.Handler),
		tallies:   make(map[core.Manager]*tally),
		settled:   make(map[core.Manager]bool),
		made:      time.Now(),
	}, nil
}

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

func (f *Fleet) review(r *record, now time.Time) {
	for _, p := range r.replicas {
		p.paths.review(now)
	}
	if r.lose(now) {
		f.schedule(r.key, CauseReplicaLost, now)
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

// Options are the optional settings of a [Fleet]. The zero value is the documented default.
type Options struct {
	// ForgetAfter is the silence after which a stale or unknown runtime is forgotten, unless
	// [Fleet.Expect] was called for it. Default: 7 days.
	ForgetAfter time.Duration
	// MaxStatuses bounds the pairs of runtime and manager. Further ones stay unknown. Default:
	// 100,000.
	MaxStatuses int

	// PollFresh, PollUnproved and PollOtherwise are the intervals of [Fleet.RequeueAfter].
	// None may be longer than the one before. Defaults: 30 min, 5 min and 1 min, or the one before
	// if that is shorter.
	PollFresh     time.Duration
	PollUnproved  time.Duration
	PollOtherwise time.Duration

	// PendingTooLong is the age of the oldest pending event above which a runtime is degraded.
	// Default: 1 min.
	PendingTooLong time.Duration

	// ResyncJitter spreads the resyncs of the fleet, each at random within it. Default: 2 s.
	ResyncJitter time.Duration
	// ResyncsPerSecond bounds the resyncs of the fleet for each manager. Default: 100.
	ResyncsPerSecond int

	// Random returns numbers in [0, 1), concurrently. Default: [rand.Float64].
	Random func() float64
	// Resynced is called when a resync of the fleet was delivered. It is called concurrently, and
	// must return immediately. Default: none.
	Resynced func(hook.Resync)
	// Logger gets a line when the freshness of a runtime changes: in 10 s one for each change that
	// it repeats, and about 100 in all. The level is warn for stale and degraded, and info for the
	// others. Each resync is a line at debug. Nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.PollFresh = cmp.Or(o.PollFresh, 30*time.Minute)
	o.PollUnproved = cmp.Or(o.PollUnproved, min(5*time.Minute, o.PollFresh))
	return option.WithDefaults(o, Options{
		ForgetAfter:      7 * 24 * time.Hour,
		MaxStatuses:      100_000,
		PollOtherwise:    min(time.Minute, o.PollUnproved),
		PendingTooLong:   time.Minute,
		ResyncJitter:     2 * time.Second,
		ResyncsPerSecond: 100,
		Random:           rand.Float64,
		Logger:           slog.New(slog.DiscardHandler),
	})
}

func (o Options) validate() error {
	set := o.withDefaults()
	return errors.Join(
		option.NoneNegative(o),
		notLonger("PollUnproved", set.PollUnproved, "PollFresh", set.PollFresh),
		notLonger("PollOtherwise", set.PollOtherwise, "PollUnproved", set.PollUnproved),
	)
}

// notLonger refuses intervals by which a runtime is polled less often the less is known of it.
func notLonger(name string, value time.Duration, than string, most time.Duration) error {
	if value <= most || most < 0 {
		return nil
	}
	return fmt.Errorf("fleet: option %s is %v, want at most %s, which is %v", name, value, than, most)
}
