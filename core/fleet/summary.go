package fleet

import (
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// Summary sums up the runtimes of one manager. Metrics and the status page show it.
type Summary struct {
	// Runtimes is the number of runtimes in each state, for each reason.
	Runtimes map[Condition]int
	// Pending is the number of events that wait in the runtimes, and OldestPending the age of the
	// oldest event, both from the last heartbeats.
	Pending       int64
	OldestPending time.Duration
	// FirstExpiry is the earliest expiry of a verified client certificate, or zero if no expiry is
	// known. A silent runtime counts if its certificate had expired when the runtime became silent.
	FirstExpiry time.Time
	// Versions is the number of runtimes with each version of the agent, without silent agents and
	// agents that report no version. A runtime with two versions counts for each of them. At most
	// eight versions have a key: the versions with the most runtimes. [OtherVersions] counts all
	// other versions.
	Versions map[string]int
	// ClockSkew is the largest difference between the clock of an agent and the clock of this
	// process, whichever is ahead.
	ClockSkew time.Duration

	// Resyncs counts the delivered resyncs that the fleet requested, by cause. ResyncsToCome counts
	// the requested resyncs that are not delivered yet.
	Resyncs       map[hook.ResyncCause]int64
	ResyncsToCome int
	// Untracked counts the requests of runtimes beyond [Options].MaxStatuses.
	Untracked int64
	// Events counts the events of the tracked requests, including events that were refused or sent
	// again.
	Events int64
}

// mostPending bounds the number that one replica can claim: it is foreign input, and added up.
const mostPending = 1 << 32

func newSummary() *Summary {
	return &Summary{
		Runtimes: make(map[Condition]int),
		Resyncs:  make(map[hook.ResyncCause]int64),
		Versions: make(map[string]int),
	}
}

// addRecord counts a certificate of a live replica, and the certificate that has made its runtime
// stale.
func (s *Summary) addRecord(r *record, opts *Options, now time.Time) {
	state, reason := r.judge(opts, now)
	s.Runtimes[Condition{state, reason}]++
	for _, version := range r.versions(now) {
		s.Versions[version]++
	}

	for _, p := range r.replicas {
		isAlive := p.isAlive(now)
		if isAlive {
			s.addHeartbeat(p)
		}
		hasEndedByExpiry := state == Stale && p.isExpired(now)
		if isAlive || hasEndedByExpiry {
			s.addExpiry(p.certificate.notAfter)
		}
	}
}

// addHeartbeat adds the last heartbeat of a replica.
func (s *Summary) addHeartbeat(p *replica) {
	s.Pending += min(max(p.heartbeat.Pending, 0), mostPending)
	s.OldestPending = max(s.OldestPending, p.heartbeat.OldestPending)
	s.ClockSkew = max(s.ClockSkew, p.clock.skew().Abs())
}

func (s *Summary) addExpiry(expiry time.Time) {
	isFirst := s.FirstExpiry.IsZero() || expiry.Before(s.FirstExpiry)
	if !expiry.IsZero() && isFirst {
		s.FirstExpiry = expiry
	}
}

// setTally sets the counters of the manager.
func (s *Summary) setTally(t *tally) {
	s.Resyncs = maps.Clone(t.resyncs)
	s.Untracked = t.untracked
	s.Events = t.events
}

// Summaries returns a consistent snapshot of the summaries of all managers: managers with runtimes,
// and managers that Start serves while a handler is ready. The cost grows with the number of
// runtimes.
func (f *Fleet) Summaries() map[core.Manager]*Summary {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	all := make(map[core.Manager]*Summary)

	ensure := func(manager core.Manager) *Summary {
		if all[manager] == nil {
			all[manager] = newSummary()
		}
		return all[manager]
	}

	for k, r := range f.records {
		ensure(k.manager).addRecord(r, &f.opts, now)
	}

	for k := range f.resyncs.toCome {
		ensure(k.manager).ResyncsToCome++
	}

	for manager, t := range f.tallies {
		ensure(manager).setTally(t)
	}

	if !f.leads.IsZero() { // Otherwise no runtime sends to this replica.
		for manager := range f.served {
			ensure(manager)
		}
	}

	for _, s := range all {
		s.Versions = boundVersions(s.Versions)
	}

	return all
}
