package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// MaxOwners bounds the owners for whom resyncs of one manager are: owners are foreign input.
const MaxOwners = 100

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
			o.resyncAll(l, now)
		}
	}
}

// isNews reports whether a manager, or an owner where resyncs are for owners, was unknown until
// now.
func (o *Outbox) isNews(l *lane, added bool, owner types.NamespacedName) bool {
	if o.opts.ResyncOwners {
		return l.addOwner(owner)
	}

	return added
}

// resync asks for a look at the whole runtime. The owner counts only where resyncs are for owners.
// There is none for the owners beyond MaxOwners.
func (o *Outbox) resync(l *lane, owner types.NamespacedName, now time.Time) {
	resync, ok := o.newResync(l, owner, now)
	if ok {
		o.keep(l, resync, now)
	}
}

// newResync returns a resync, and whether there is room for it.
func (o *Outbox) newResync(l *lane, owner types.NamespacedName, now time.Time) (resync core.WatchEvent, ok bool) {
	resync = core.WatchEvent{Resync: true, Time: now}
	if !o.opts.ResyncOwners {
		return resync, true
	}

	l.addOwner(owner)
	resync.Owner = owner

	return resync, owner != types.NamespacedName{} && l.takesResync(resync.Key())
}

// targets returns the owners for whom a resync of the runtime is: one without name, unless resyncs
// are for owners.
func (o *Outbox) targets(l *lane) []types.NamespacedName {
	if o.opts.ResyncOwners {
		return l.owners
	}

	return []types.NamespacedName{{}}
}

// resyncAll asks for a resync of the runtime, or of each known owner.
func (o *Outbox) resyncAll(l *lane, now time.Time) core.Outcome {
	targets := o.targets(l)
	if len(targets) == 0 {
		return l.counts.refuse(ReasonNoOwner)
	}

	for _, owner := range targets {
		o.resync(l, owner, now)
	}

	return core.Accepted
}

// resyncUnlessPending asks for a resync of the runtime, unless one waits to be sent.
func (o *Outbox) resyncUnlessPending(l *lane, now time.Time) {
	if resync := (core.WatchEvent{Resync: true}); l.entries[resync.Key()] == nil {
		o.resync(l, types.NamespacedName{}, now)
	}
}

// standIn asks for a resync of the runtime instead of an event that was refused.
func (o *Outbox) standIn(l *lane, newest time.Time, permanent bool, now time.Time) {
	at := o.standInTime(l, permanent, now)
	targets := o.targets(l)

	if len(targets) == 0 {
		l.counts.refuse(ReasonNoOwner)
	}

	for _, owner := range targets {
		if e := o.resyncEntry(l, owner, at); e != nil && l.sendAfter(e, newest, at) {
			l.stoodIn = at
		}
	}
}

// standInTime returns when a resync stands in for a refused event. Refusals come in bursts, so that
// there is one resync in MaxBackoff. Events that are given up after retries have waited for
// minutes, and those of one burst are given up within MaxBackoff and some time: the resync waits
// for all of them.
func (o *Outbox) standInTime(l *lane, permanent bool, now time.Time) time.Time {
	if !permanent {
		return now.Add(2 * o.opts.MaxBackoff)
	}

	return latest(now.Add(max(o.opts.Settle, 0)), l.stoodIn.Add(o.opts.MaxBackoff))
}

// resyncEntry returns the entry of a resync. A new one is no event before its time has come. It is
// nil when there is no room for it.
func (o *Outbox) resyncEntry(l *lane, owner types.NamespacedName, at time.Time) *entry {
	resync, ok := o.newResync(l, owner, at)
	if !ok {
		return nil
	}

	if e := l.entries[resync.Key()]; e != nil {
		return e
	}

	e := &entry{Numbered: core.Numbered{WatchEvent: resync}}
	l.entries[resync.Key()] = e
	l.scheduleResend(e, at)

	return e
}
