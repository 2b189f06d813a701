package outbox

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Accept implements [core.Acceptor]. It never blocks, calls nothing and logs nothing, and its cost
// does not depend on the number of pending events. Events are accepted before Start, too.
func (o *Outbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.stopped {
		if l := o.lanes[manager]; l != nil {
			return l.counts.refuse(ReasonShutdown)
		}
		return o.others.refuse(ReasonShutdown)
	}

	now := time.Now() // Under the lock, so that events are due in the order in which they are kept.

	l, added := o.lane(manager, now)
	if l == nil {
		return o.others.refuse(ReasonTooManyManagers)
	}
	if l.pulse.leaving != stays {
		return l.counts.refuse(ReasonShutdown)
	}
	l.newest = now

	if event.Resync && o.opts.ResyncOwners && event.Owner == (types.NamespacedName{}) {
		return l.resyncAll(now)
	}

	room := o.makeRoom(l, &event, now)
	l.resyncBeside(added, room, &event, now)

	if !room {
		l.noteOverflow(now)
		return l.counts.refuse(ReasonOverflow)
	}

	return l.keep(event, now)
}

func (o *Outbox) lane(manager core.Manager, now time.Time) (l *lane, added bool) {
	if l := o.lanes[manager]; l != nil {
		return l, false
	}
	if len(o.lanes) >= o.opts.MaxManagers && !o.evictLane(now) {
		o.log.warnLimit(now, "too many managers: the agent drops the events of a further manager "+
			"without a resync", manager, o.opts.MaxManagers)
		return nil, false
	}
	l = newLane(&o.shared, manager)
	if o.evicted > 0 { // The manager may have had a lane with the same numbers.
		l.idPrefix += strconv.Itoa(o.evicted) + "-"
	}
	o.lanes[manager] = l
	if o.opts.Epoch != "" && o.opts.HeartbeatInterval > 0 {
		l.pulse.next = now
	}
	signal(o.added)
	return l, true
}

// evictLane makes room for a lane, and reports whether there is some. It removes the lane of a
// manager that the control plane never knew, or that never had an event. Otherwise it removes the
// lane without events for the longest time, because a gateway may acknowledge the events of
// invented managers. Configured managers stay. No resync stands in for the events of the lane,
// because no operator would get it.
func (o *Outbox) evictLane(now time.Time) bool {
	var idle *lane
	for _, l := range o.lanes {
		switch {
		case l.configured || l.inFlight > 0:
		case l.isUnproved():
			o.evict(l, now)
			return true
		case l.entries.len() == 0 && (idle == nil || l.newest.Before(idle.newest)):
			idle = l
		}
	}
	if idle != nil {
		o.evict(idle, now)
	}
	return idle != nil
}

// isUnproved reports whether nothing shows that the manager of a lane exists, and no event that
// waits can find out.
func (l *lane) isUnproved() bool { return !l.reached && (l.unknown || l.entries.len() == 0) }

func (o *Outbox) evict(l *lane, now time.Time) {
	o.evicted++
	o.allKeys -= l.keys
	o.allBytes -= l.bytes
	delete(o.lanes, l.manager)
	if l.counts.Pending > 0 {
		l.log.warnLimit(now, "too many managers: the agent drops the events of a manager "+
			"that the control plane never acknowledged",
			l.manager, l.opts.MaxManagers)
	}
	l.clear(core.ReasonUnknownManager)
	close(l.closed)
	o.others.add(l.counts)
}
