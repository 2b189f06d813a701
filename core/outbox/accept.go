package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Accept implements [core.Acceptor]. It never blocks, calls nothing and logs nothing, and its cost does
// not depend on the number of pending events. Events are accepted before Start, too.
func (o *Outbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	l, added := o.lane(manager, now)
	if l == nil {
		return o.others.refuse(ReasonTooManyManagers)
	}

	if o.stopped {
		return l.counts.refuse(ReasonShutdown)
	}

	if event.Resync && o.opts.ResyncOwners && event.Owner == (types.NamespacedName{}) {
		return o.resyncOwners(l, now)
	}

	if o.opts.ResyncFirst && o.isNews(l, added, event.Owner) {
		o.resync(l, event.Owner, now)
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

	if len(o.lanes) >= o.opts.MaxManagers && !o.evictLane() {
		o.noteTooManyManagers(manager, now)

		return nil, false
	}

	l = newLane(manager)
	if o.opts.Epoch != "" && o.opts.HeartbeatInterval > 0 {
		l.pulse.next = now
	}

	o.lanes[manager] = l
	signal(o.added)

	return l, true
}

// evictLane removes a lane whose manager the control plane never knew, unless it is configured, and
// reports whether there was one. Nothing stands in for its events: no manager there would get it.
func (o *Outbox) evictLane() bool {
	for manager, l := range o.lanes {
		if l.configured || !l.unknown || l.inFlight > 0 {
			continue
		}

		l.counts.giveUp(l.counts.Pending, ReasonUnknownManager)
		o.others.add(l.counts)
		o.keys -= l.keys
		delete(o.lanes, manager)
		l.close()

		return true
	}

	return false
}

// hasRoom reports whether an event may be kept. A new key beyond MaxKeys takes the place of a resend,
// or of an event of the manager that has the most keys.
func (o *Outbox) hasRoom(l *lane, event *core.WatchEvent, now time.Time) bool {
	if event.Resync || l.entries[event.Key()] != nil || o.keys < o.opts.MaxKeys {
		return true
	}

	return o.giveUpResend(now) || o.giveUpEvent(l, now)
}

// giveUpResend drops the resend of one key, of the manager with the most keys. The resend of a resync
// stands in: it comes as late.
func (o *Outbox) giveUpResend(now time.Time) bool {
	l := o.largest(func(l *lane) bool { return l.lastResend() != nil })
	if l == nil {
		return false
	}

	o.forget(l, l.lastResend())
	o.resendResync(l, now)

	return true
}

// giveUpEvent drops an event of a manager that has more keys than l. A resync stands in.
func (o *Outbox) giveUpEvent(l *lane, now time.Time) bool {
	hog := o.largest(func(other *lane) bool { return other.keys > l.keys+1 && other.lastWaiting() != nil })
	if hog == nil {
		return false
	}

	e := hog.lastWaiting()
	dropped := int64(1)

	if e.next != nil {
		dropped++
	}

	o.forget(hog, e)
	hog.counts.giveUp(dropped, ReasonOverflow)
	o.resync(hog, e.Owner, now)

	return true
}

// largest returns the lane with the most keys among those that match, nil if none does.
func (o *Outbox) largest(match func(*lane) bool) (most *lane) {
	for _, l := range o.lanes {
		if match(l) && (most == nil || l.keys > most.keys) {
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
