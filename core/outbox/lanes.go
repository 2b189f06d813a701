package outbox

import (
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// lanes are the lanes of an outbox, one for each manager with events. shared.mu guards all fields
// that change.
type lanes struct {
	shared

	byManager map[core.Manager]*lane
	evicted   int
	others    Counts        // of managers without a lane.
	added     chan struct{} // holds a token when there may be lanes without dispatcher.
}

// ensureLane returns the lane of a manager, and makes it if necessary. It returns nil if there is
// no room.
func (s *lanes) ensureLane(manager core.Manager, now time.Time) (l *lane, added bool) {
	if l := s.byManager[manager]; l != nil {
		return l, false
	}

	if len(s.byManager) >= s.opts.MaxManagers && !s.evictOne(now) {
		s.log.warnLimit(now, "too many managers: the agent drops the events of a further manager "+
			"without a resync", manager, s.opts.MaxManagers)
		return nil, false
	}

	l = newLane(&s.shared, manager)
	if s.evicted > 0 { // The manager may have had a lane with the same numbers.
		l.idPrefix += strconv.Itoa(s.evicted) + "-"
	}
	if s.opts.Epoch != "" && s.opts.HeartbeatInterval > 0 {
		l.schedule.next = now
	}
	s.byManager[manager] = l
	signal(s.added)
	return l, true
}

// evictOne makes room for a lane, and reports whether there is some. It removes the lane of a
// manager that the control plane never knew, or that never had an event. Otherwise it removes the
// lane without events for the longest time, because a gateway may acknowledge the events of
// invented managers. Configured managers stay. No resync replaces the events of the lane, because
// no operator would get it.
func (s *lanes) evictOne(now time.Time) bool {
	var idle *lane
	for _, l := range s.byManager {
		isOldest := idle == nil || l.newest.Before(idle.newest)
		switch {
		case l.configured || l.inFlight > 0:
		case l.isUnproved():
			s.evictLane(l, now)
			return true
		case l.isIdle() && isOldest:
			idle = l
		}
	}

	if idle == nil {
		return false
	}

	s.evictLane(idle, now)
	return true
}

// evictLane gives up the events of a lane, ends its dispatcher and adds its counts to the counts of
// the managers without a lane. The caller holds the lock.
func (s *lanes) evictLane(l *lane, now time.Time) {
	s.evicted++
	delete(s.byManager, l.manager)

	if l.counts.Pending > 0 {
		s.log.warnLimit(now, "too many managers: the agent drops the events of a manager "+
			"that the control plane never acknowledged",
			l.manager, s.opts.MaxManagers)
	}

	l.dropAll(core.ReasonUnknownManager)
	close(l.closed)
	s.others.addAll(l.counts)
}

// largest returns the lane with the largest share of those that match, nil if none does.
func (s *lanes) largest(by share, match func(*lane) bool) (most *lane) {
	for _, l := range s.byManager {
		isLarger := most == nil || by.of(l) > by.of(most)
		if isLarger && match(l) {
			most = l
		}
	}
	return most
}

// share is the part of a bound that lanes have, and the part that an event needs.
type share struct {
	of   func(*lane) int
	more int
}
