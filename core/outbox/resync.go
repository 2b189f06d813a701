package outbox

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxOwners bounds the owners with resyncs of one manager, and the resyncs of owners that are only
// named: owners are foreign input.
const maxOwners = 100

// Resync asks every known manager to look at the whole runtime, because changes may have passed
// unseen. With [Options].ResyncOwners, it asks for each known owner. A resync that waits already
// stands for this one, too. Resync never blocks, and its resyncs are counted like events.
func (o *Outbox) Resync() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for _, l := range o.lanes {
		if o.stopped {
			l.counts.refuse(ReasonShutdown)
		} else {
			l.resyncAll(now)
		}
	}
}

// resyncBeside asks for a resync beside the first event of a manager, and beside an event that has
// no room. Where resyncs are for owners, the first event of an owner counts.
func (l *lane) resyncBeside(added, room bool, event *core.WatchEvent, now time.Time) {
	news := added
	if l.opts.ResyncOwners {
		news = l.owners.add(event.Owner)
	}
	first := news && l.opts.ResyncFirst && !event.Resync
	if !first && room {
		return
	}

	kept := l.resync(event.Owner, now)
	if news && !kept {
		l.owners.remove(event.Owner) // The owner gets its resync once one of its events is taken.
	}
}

// noteOwner notes that the receiver has taken an entry. If invented owners had left no room for its
// owner, the first resync of that owner follows now.
func (l *lane) noteOwner(e *entry, now time.Time) {
	if !l.opts.ResyncOwners {
		return
	}
	admitted := l.owners.noteTaken(e.Owner)
	isLeaving := l.pulse.leaving != stays
	if admitted && l.opts.ResyncFirst && !e.Resync && !isLeaving {
		l.resync(e.Owner, now)
	}
}

// resync drops the owner unless resyncs are for owners. Owners beyond maxOwners get none, which it
// reports.
func (l *lane) resync(owner types.NamespacedName, now time.Time) (kept bool) {
	resync, ok := l.newResync(owner, now)
	if ok {
		l.keep(resync, now)
	}
	return ok
}

func (l *lane) newResync(owner types.NamespacedName, now time.Time) (resync core.WatchEvent, ok bool) {
	resync = core.WatchEvent{Resync: true, Time: now}
	if !l.opts.ResyncOwners {
		return resync, true
	}
	l.owners.add(owner)
	resync.Owner = owner
	return resync, owner != types.NamespacedName{} && l.takesResync(resync.Key())
}

// targets has one owner without name, unless resyncs are for owners.
func (l *lane) targets() []types.NamespacedName {
	if l.opts.ResyncOwners {
		return l.owners.all()
	}
	return []types.NamespacedName{{}}
}

func (l *lane) resyncAll(now time.Time) core.Outcome {
	targets := l.targets()
	if len(targets) == 0 {
		return l.counts.refuse(ReasonNoOwner)
	}
	for _, owner := range targets {
		l.resync(owner, now)
	}
	return core.Accepted
}

// standIn asks for a resync of the runtime instead of an event that was refused.
func (l *lane) standIn(newest time.Time, permanent bool, now time.Time) {
	at := l.standInTime(permanent, now)
	targets := l.targets()
	if len(targets) == 0 {
		l.counts.refuse(ReasonNoOwner)
	}
	for _, owner := range targets {
		if e := l.resyncEntry(owner, at); e != nil && l.sendAfter(e, newest, at) {
			l.stoodIn = at
		}
	}
}

// standInTime returns when a resync stands in for a refused event. Refusals come in bursts, so that
// there is one resync in MaxBackoff. Events that are given up after retries have waited for
// minutes, and those of one burst are given up within about MaxBackoff. The resync waits for all
// of them.
func (l *lane) standInTime(permanent bool, now time.Time) time.Time {
	if !permanent {
		return now.Add(2 * l.opts.MaxBackoff)
	}
	return latest(now.Add(max(l.opts.Settle, 0)), l.stoodIn.Add(l.opts.MaxBackoff))
}

// resyncEntry is nil without room. A new entry is no event before its time has come.
func (l *lane) resyncEntry(owner types.NamespacedName, at time.Time) *entry {
	resync, ok := l.newResync(owner, at)
	if !ok {
		return nil
	}
	if e := l.entries.find(resync.Key()); e != nil {
		return e
	}
	e := &entry{Numbered: core.Numbered{WatchEvent: resync}}
	l.entries.add(e)
	l.noteSize(e, e.size())
	l.scheduleResend(e, at)
	return e
}

// noteResynced keeps the owners of the last interval only: owners are foreign input.
func (l *lane) noteResynced(owner types.NamespacedName, sent time.Time) {
	if len(l.resynced) >= maxOwners {
		maps.DeleteFunc(l.resynced, func(_ types.NamespacedName, last time.Time) bool {
			return sent.Sub(last) >= resyncInterval
		})
	}
	l.resynced[owner] = sent
}

// owners are those with resyncs, at most maxOwners. A pod chooses the owner of an event, so an
// owner that is only named gives way to one of which the receiver has taken an event.
type owners struct{ taken, named []types.NamespacedName }

// add reports whether the owner is new, and has room.
func (o *owners) add(owner types.NamespacedName) bool {
	isKnown := o.hasTaken(owner) || slices.Contains(o.named, owner)
	if owner == (types.NamespacedName{}) || isKnown || len(o.taken)+len(o.named) >= maxOwners {
		return false
	}
	o.named = append(o.named, owner)
	return true
}

// noteTaken notes that the receiver has taken an event of an owner. It reports whether the owner
// had no room before, so that its first event has brought no resync.
func (o *owners) noteTaken(owner types.NamespacedName) (admitted bool) {
	if owner == (types.NamespacedName{}) || o.hasTaken(owner) || len(o.taken) >= maxOwners {
		return false
	}
	admitted = !slices.Contains(o.named, owner)
	o.named = without(o.named, owner)
	if len(o.taken)+len(o.named) >= maxOwners {
		o.named = o.named[:len(o.named)-1]
	}
	o.taken = append(o.taken, owner)
	return admitted
}

func (o *owners) remove(owner types.NamespacedName) {
	o.taken = without(o.taken, owner)
	o.named = without(o.named, owner)
}

func (o *owners) hasTaken(owner types.NamespacedName) bool { return slices.Contains(o.taken, owner) }

func (o *owners) all() []types.NamespacedName { return slices.Concat(o.taken, o.named) }

func without(owners []types.NamespacedName, owner types.NamespacedName) []types.NamespacedName {
	return slices.DeleteFunc(owners, func(known types.NamespacedName) bool { return known == owner })
}
