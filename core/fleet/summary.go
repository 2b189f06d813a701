package fleet

import (
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Summary is how all runtimes fare that were heard for one manager. It is what metrics are made of.
type Summary struct {
	// Runtimes are how many are in each state, for each reason.
	Runtimes map[Condition]int
	// Pending is how many events wait in the runtimes, as the replicas that are heard told last, and OldestPending how long the oldest of
	// them had been waiting then.
	Pending       int64
	OldestPending time.Duration
	// FirstExpiry is when the first client certificate of a replica that is heard expires, the zero time if none is known.
	FirstExpiry time.Time

	// Resyncs are how many were delivered that the fleet asked for, by cause, and ResyncsToCome how many were not yet.
	Resyncs       map[string]int64
	ResyncsToCome int
	// Untracked is how often a runtime was heard that is not tracked, as [Options.MaxStatuses] is reached.
	Untracked int64
}

// Condition is a state with its reason.
type Condition struct {
	State  State
	Reason string
}

// mostPending bounds what one replica can claim: it is foreign input, and it is added up.
const mostPending = 1 << 32

// tally is what is counted for a manager, and outlives its runtimes.
type tally struct {
	resyncs   map[string]int64
	untracked int64
}

func (f *Fleet) tally(manager core.Manager) *tally {
	t := f.tallies[manager]
	if t == nil {
		t = &tally{resyncs: make(map[string]int64)}
		f.tallies[manager] = t
	}

	return t
}

// Summaries returns how the runtimes fare, by manager, all at one moment. Its cost grows with them.
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
		of(manager).Resyncs, of(manager).Untracked = maps.Clone(t.resyncs), t.untracked
	}

	return all
}

func (s *Summary) add(r *record, opts *Options, now time.Time) {
	state, reason := r.judge(opts, now)
	s.Runtimes[Condition{state, reason}]++

	for _, p := range r.replicas {
		if !p.alive(opts, now) {
			continue
		}

		s.Pending += min(max(p.beat.Pending, 0), mostPending)
		s.OldestPending = max(s.OldestPending, p.beat.OldestPending)

		if expiry := p.certificate.notAfter; !expiry.IsZero() && (s.FirstExpiry.IsZero() || expiry.Before(s.FirstExpiry)) {
			s.FirstExpiry = expiry
		}
	}
}
