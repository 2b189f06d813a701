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
		return o.countsOf(manager).refuse(ReasonShutdown)
	}

	now := time.Now() // Under the lock, so that events are due in the order in which they are kept.

	l, added := o.lane(manager, now)
	if l == nil {
		return o.others.refuse(ReasonTooManyManagers)
	}

	if o.isNews(l, added, event.Owner) && o.opts.ResyncFirst && !event.Resync {
		o.resync(l, event.Owner, now)
	}

	return o.acceptInto(l, event, now)
}

func (o *Outbox) acceptInto(l *lane, event core.WatchEvent, now time.Time) core.Outcome {
	if event.Resync && o.opts.ResyncOwners && event.Owner == (types.NamespacedName{}) {
		return o.resyncAll(l, now)
	}

	if !o.hasRoom(l, &event, now) {
		o.resync(l, event.Owner, now)

		return l.counts.refuse(ReasonOverflow)
	}

	return o.keep(l, event, now)
}

// lane returns the manager's lane, and whether it is new. It is nil when there are too many.
func (o *Outbox) lane(manager core.Manager, now time.Time) (l *lane, added bool) {
	if l := o.lanes[manager]; l != nil {
		return l, false
	}

	if len(o.lanes) >= o.opts.MaxManagers && !o.evictLane(now) {
		o.noteTooManyManagers(manager, now)

		return nil, false
	}

	return o.addLane(manager, now), true
}

func (o *Outbox) addLane(manager core.Manager, now time.Time) *lane {
	l := newLane(manager, o.idPrefix(manager))
	o.lanes[manager] = l

	if o.opts.Epoch != "" && o.opts.HeartbeatInterval > 0 {
		l.pulse.next = now
	}

	signal(o.added)

	return l
}

// evictLane makes room for a lane, and reports whether there is some. It removes one whose manager
// the control plane never knew, unless the manager is configured. Nothing stands in for its events:
// no manager there would get it.
func (o *Outbox) evictLane(now time.Time) bool {
	for _, l := range o.lanes {
		if l.unknown && !l.configured && l.inFlight == 0 {
			o.evict(l, now)

			return true
		}
	}

	return false
}

func (o *Outbox) evict(l *lane, now time.Time) {
	o.evicted++
	o.keys -= l.keys
	delete(o.lanes, l.manager)
	l.clear(ReasonUnknownManager)
	close(l.closed)
	o.others.add(l.counts)
	o.noteEvicted(l, now)
}

// idPrefix begins the IDs of a lane. A manager may get a second lane after its first one was
// evicted.
func (o *Outbox) idPrefix(manager core.Manager) string {
	prefix := o.opts.Epoch + "-" + string(manager) + "-"
	if o.evicted > 0 {
		prefix += strconv.Itoa(o.evicted) + "-"
	}

	return prefix
}

// hasRoom reports whether an event may be kept. A new key beyond MaxKeys takes the place of a
// resend, or of an event of the manager that has the most keys.
func (o *Outbox) hasRoom(l *lane, event *core.WatchEvent, now time.Time) bool {
	switch {
	case event.Resync:
		return l.takesResync(event.Key())
	case l.entries[event.Key()] != nil, o.keys < o.opts.MaxKeys:
		return true
	default:
		return o.giveUpResend(l, now) || o.giveUpEvent(l, now)
	}
}

// giveUpResend drops the resend of one key of l, or of a manager that has more keys. A resync
// stands in that comes as late.
func (o *Outbox) giveUpResend(l *lane, now time.Time) bool {
	hog := o.largest(func(other *lane) bool {
		return (other == l || other.keys > l.keys) && other.lastResend() != nil
	})
	if hog == nil {
		return false
	}

	e := hog.lastResend()
	o.forget(hog, e)
	o.resendResync(hog, e.Owner, now)

	return true
}

// giveUpEvent drops an event of a manager that has more keys than l. A resync stands in.
func (o *Outbox) giveUpEvent(l *lane, now time.Time) bool {
	hog := o.largest(func(other *lane) bool { return other.keys > l.keys+1 && other.lastWaiting() != nil })
	if hog == nil {
		return false
	}

	e := hog.lastWaiting()
	o.forget(hog, e)
	hog.counts.giveUp(e.events(), ReasonOverflow)
	o.resync(hog, e.Owner, now)

	return true
}

// largest returns the lane with the most keys among those that match, nil if none does.
func (o *Outbox) largest(match func(*lane) bool) (most *lane) {
	for _, l := range o.lanes {
		if (most == nil || l.keys > most.keys) && match(l) {
			most = l
		}
	}

	return most
}

// forget removes a waiting entry with its key.
func (o *Outbox) forget(l *lane, e *entry) {
	e.queue.remove(e)
	o.free(l, e)
}

// free removes the key of an entry that is in no queue.
func (o *Outbox) free(l *lane, e *entry) {
	delete(l.entries, e.Key())

	if !e.Resync {
		l.keys--
		o.keys--
	}
}

// keep puts an event for which there is room into its lane.
func (o *Outbox) keep(l *lane, event core.WatchEvent, now time.Time) core.Outcome {
	outcome, added := l.put(event, now, now.Add(max(o.opts.Settle, 0)))
	if added && !event.Resync {
		o.keys++
		l.keys++
	}

	l.counts.Accepted++

	if outcome == core.Coalesced {
		l.counts.Coalesced++
	} else {
		l.counts.Pending++
	}

	return outcome
}
