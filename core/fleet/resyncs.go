package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// resyncs are the resyncs that the fleet requests. Observations and reviews schedule them, the
// goroutines of [Receiver.Start] deliver them. All hold the lock of the fleet.
type resyncs struct {
	toCome map[key]*resync
	// underWay contains the runtimes of which the handler has a resync. A runtime has one at a
	// time, so that a handler that hangs for one runtime takes one of the places.
	underWay map[key]bool
}

func newResyncs() resyncs {
	return resyncs{toCome: make(map[key]*resync), underWay: make(map[key]bool)}
}

func (s *resyncs) isScheduled(k key) bool { return s.toCome[k] != nil }

func (s *resyncs) scheduleResync(k key, cause hook.ResyncCause, due time.Time) {
	s.toCome[k] = &resync{cause, due}
}

func (s *resyncs) cancelResync(k key) { delete(s.toCome, k) }

type dueResync struct {
	key

	at time.Time
}

// collectDue copies, so that sorting needs no lock.
func (s *resyncs) collectDue(manager core.Manager, now time.Time) (due []dueResync) {
	for k, r := range s.toCome {
		if k.manager == manager && !s.underWay[k] && !r.due.After(now) {
			due = append(due, dueResync{k, r.due})
		}
	}
	return due
}

// claimResync removes a resync from those to come: a later cause needs another resync.
func (s *resyncs) claimResync(k key) *resync {
	claimed := s.toCome[k]
	if claimed != nil {
		delete(s.toCome, k)
		s.underWay[k] = true
	}
	return claimed
}

// giveBack puts a resync back that was not delivered, unless another resync is to come.
func (s *resyncs) giveBack(k key, claimed *resync, due time.Time) {
	if s.toCome[k] == nil {
		claimed.due = due
		s.toCome[k] = claimed
	}
}

// endDelivery lets the next resync of a runtime begin.
func (s *resyncs) endDelivery(k key) { delete(s.underWay, k) }
