package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// resyncOwners are the owners of the resyncs of the whole runtime: one owner without a name, unless
// resyncs are for owners.
func (l *lane) resyncOwners() []types.NamespacedName {
	if l.opts.ResyncOwners {
		return l.owners.all()
	}
	return []types.NamespacedName{{}}
}

// resyncAll keeps a resync for each owner.
func (l *lane) resyncAll(now time.Time) core.Outcome {
	all := l.resyncOwners()
	if len(all) == 0 {
		return l.counts.refuseEvent(ReasonNoOwner)
	}

	for _, owner := range all {
		l.keepResync(owner, now)
	}
	return core.Accepted
}

// keepResync drops the owner unless resyncs are for owners. Owners beyond maxOwners get none, which
// it reports.
func (l *lane) keepResync(owner types.NamespacedName, now time.Time) (kept bool) {
	l.nameOwner(owner)
	resync, hasRoom := l.resyncOf(owner, now)
	if hasRoom {
		l.keepEvent(resync, now)
	}
	return hasRoom
}

// nameOwner reports whether the owner is new, where resyncs are for owners.
func (l *lane) nameOwner(owner types.NamespacedName) (added bool) {
	return l.opts.ResyncOwners && l.owners.addNamed(owner)
}

// resyncOf returns a resync for an owner, or for the runtime unless resyncs are for owners, and
// whether there is room for it.
func (l *lane) resyncOf(owner types.NamespacedName, now time.Time) (resync core.WatchEvent, hasRoom bool) {
	resync = core.WatchEvent{Resync: true, Time: now}
	if !l.opts.ResyncOwners {
		return resync, true
	}
	resync.Owner = owner
	return resync, owner != types.NamespacedName{} && l.hasRoomForResync(resync.Key())
}

// hasRoomForResync is always true for a resync without owner, and for one of an owner of which the
// receiver has taken an event.
func (l *lane) hasRoomForResync(key core.EventKey) bool {
	if key.Owner == (types.NamespacedName{}) || l.owners.hasTaken(key.Owner) {
		return true
	}
	resyncs := l.entries.len() - l.keys
	return resyncs < maxOwners || l.entries.find(key) != nil
}

// resyncBeside requests a resync in addition to the first event of a manager, and in addition to an
// event that has no room. Where resyncs are for owners, the first event of an owner counts.
func (l *lane) resyncBeside(added, room bool, event *core.WatchEvent, now time.Time) {
	news := added
	if l.opts.ResyncOwners {
		news = l.nameOwner(event.Owner)
	}
	first := news && l.opts.ResyncFirst && !event.Resync
	if !first && room {
		return
	}

	kept := l.keepResync(event.Owner, now)
	if news && !kept {
		l.owners.removeOwner(event.Owner) // The owner gets its resync once one of its events is taken.
	}
}

// resyncFirst keeps a resync unless there is one.
func (l *lane) resyncFirst(now time.Time) {
	resync := core.WatchEvent{Resync: true}
	if l.entries.find(resync.Key()) == nil {
		l.keepResync(types.NamespacedName{}, now)
	}
}

// noteOwner notes that the receiver has taken an entry. If invented owners had left no room for its
// owner, the first resync of that owner follows now.
func (l *lane) noteOwner(e *entry, now time.Time) {
	if !l.opts.ResyncOwners {
		return
	}
	admitted := l.owners.noteTaken(e.Owner)
	isLeaving := l.schedule.leaving != stays
	if admitted && l.opts.ResyncFirst && !e.Resync && !isLeaving {
		l.keepResync(e.Owner, now)
	}
}

// replaceByResync asks for a resync of the runtime instead of an event that was refused.
func (l *lane) replaceByResync(newest time.Time, isPermanent bool, now time.Time) {
	at := l.replacementTime(isPermanent, now)
	all := l.resyncOwners()
	if len(all) == 0 {
		l.counts.refuseEvent(ReasonNoOwner)
	}

	for _, owner := range all {
		e := l.ensureResync(owner, at)
		if e != nil && l.sendAfter(e, newest, at) {
			l.replaced = at
		}
	}
}

// replacementTime returns when a resync replaces a refused event. Refusals come in bursts, so that
// there is one resync in MaxBackoff. Events that are given up after retries have waited for
// minutes, and those of one burst are given up within about MaxBackoff. The resync waits for all
// of them.
func (l *lane) replacementTime(isPermanent bool, now time.Time) time.Time {
	if !isPermanent {
		return now.Add(2 * l.opts.MaxBackoff)
	}
	return latest(now.Add(max(l.opts.Settle, 0)), l.replaced.Add(l.opts.MaxBackoff))
}

// replaceResends schedules a resync instead of the resends of an event that is given up. It comes
// as late as the last resend of an event that is accepted now, so that one replaces many.
func (l *lane) replaceResends(owner types.NamespacedName, now time.Time) {
	at := l.opts.lastResend(now)
	if e := l.ensureResync(owner, at); e != nil {
		e.again = latest(e.again, at)
	}
}

// ensureResync returns the entry of a resync, and makes it if necessary. A new entry is no event
// before its time has come. It returns nil if there is no room.
func (l *lane) ensureResync(owner types.NamespacedName, at time.Time) *entry {
	l.nameOwner(owner)
	resync, hasRoom := l.resyncOf(owner, at)
	if !hasRoom {
		return nil
	}
	if e := l.entries.find(resync.Key()); e != nil {
		return e
	}
	return l.addResting(resync, at)
}
