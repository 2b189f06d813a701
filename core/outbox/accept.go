package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

var _ core.Acceptor = (*Outbox)(nil)

// Accept implements [core.Acceptor]. It never blocks, calls no hook and logs nothing. Its cost does
// not depend on the number of pending events. Events are also accepted before Start.
func (o *Outbox) Accept(manager core.Manager, event core.WatchEvent) core.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.stopped {
		if l := o.byManager[manager]; l != nil {
			return l.counts.refuseEvent(ReasonShutdown)
		}
		return o.others.refuseEvent(ReasonShutdown)
	}

	now := time.Now() // Under the lock, so that events are due in the order in which they are kept.

	l, added := o.ensureLane(manager, now)
	if l == nil {
		return o.others.refuseEvent(ReasonTooManyManagers)
	}
	if l.schedule.leaving != stays {
		return l.counts.refuseEvent(ReasonShutdown)
	}

	l.newest = now

	if event.Resync && o.opts.ResyncOwners && event.Owner == (types.NamespacedName{}) {
		return l.resyncAll(now)
	}

	room := o.makeRoom(l, &event, now)
	l.resyncBeside(added, room, &event, now)

	if !room {
		l.noteOverflow(now)
		return l.counts.refuseEvent(ReasonOverflow)
	}

	return l.keepEvent(event, now)
}

// Resync asks every known manager to reconcile the whole runtime, because changes may have been
// missed. With [Options].ResyncOwners, it requests a resync for each known owner. A resync that
// already waits also replaces this resync. Resync never blocks, and its resyncs are counted like
// events.
func (o *Outbox) Resync() {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()
	for _, l := range o.byManager {
		if o.stopped || l.schedule.leaving != stays {
			l.counts.refuseEvent(ReasonShutdown)
		} else {
			l.resyncAll(now)
		}
	}
}

// Retry ends all waits after failures, including waits that a receiver requested, so that due
// events are sent immediately. Call it when the cause of a refusal is gone, for example after the
// certificate was renewed. It never blocks. Its cost grows with the number of refused events.
func (o *Outbox) Retry() {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()
	for _, l := range o.byManager {
		l.endWaits(now)
	}
}
