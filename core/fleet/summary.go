package fleet

import (
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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

	// Resyncs counts the delivered resyncs that the fleet asked for, by cause. ResyncsToCome are
	// not delivered yet.
	Resyncs       map[string]int64
	ResyncsToCome int
	// Untracked counts the requests of runtimes beyond [Options].MaxStatuses.
	Untracked int64
	// Events counts the events of all other requests, with those that were refused or sent again.
	Events int64
}

// mostPending bounds the number that one replica can claim: it is foreign input, and added up.
const mostPending = 1 << 32

// tally has the counters of a manager. They outlive its runtimes.
type tally struct {
	resyncs   map[string]int64
	untracked int64
	events    int64
}

func (f *Fleet) tally(manager core.Manager) *tally {
	t := f.tallies[manager]
	if t == nil {
		t = &tally{resyncs: make(map[string]int64)}
		f.tallies[manager] = t
	}
	return t
}

// Summaries returns the summary of each manager, all at one moment. Its cost grows with the
// runtimes.
func (f *Fleet) Summaries() map[core.Manager]*Summary {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	all := make(map[core.Manager]*Summary)
	of := func(manager core.Manager) *Summary {
		if all[manager] == nil {
			all[manager] = &Summary{Runtimes: make(map[Condition]int), Resyncs: make(map[string]int64)}
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

	return all
}

func (s *Summary) add(r *record, opts *Options, now time.Time) {
	state, reason := r.judge(opts, now)
	s.Runtimes[Condition{state, reason}]++
	for _, p := range r.replicas {
		expiry := p.certificate.notAfter
		if p.isAlive(now) {
			s.Pending += min(max(p.beat.Pending, 0), mostPending)
			s.OldestPending = max(s.OldestPending, p.beat.OldestPending)
		} else if state != Stale || !p.expired(now) {
			continue
		}
		if !expiry.IsZero() && (s.FirstExpiry.IsZero() || expiry.Before(s.FirstExpiry)) {
			s.FirstExpiry = expiry
		}
	}
}
