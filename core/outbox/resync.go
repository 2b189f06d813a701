package outbox

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// MaxOwners bounds the owners that resyncs of one manager are for, as owners are foreign input.
const MaxOwners = 100

// isNews reports whether a manager, or an owner where resyncs are for owners, was unknown until now.
func (o *Outbox) isNews(l *lane, known bool, owner types.NamespacedName) bool {
	if o.opts.ResyncOwners {
		return l.meet(owner)
	}

	return !known
}

// resync lets the manager look at the whole runtime.
func (o *Outbox) resync(l *lane, owner types.NamespacedName, now time.Time) {
	o.keep(l, core.WatchEvent{Kind: core.KindResync, Owner: owner, Time: now}, now, o.opts.LookAgain)
}

// missed asks for a resync because changes may have gone by unseen, now and once more when those are committed that are under way.
func (o *Outbox) missed(l *lane, owner types.NamespacedName, now time.Time) {
	resync := core.WatchEvent{Kind: core.KindResync, Owner: owner, Time: now}
	o.keep(l, resync, now, max(o.opts.ResyncAgain, o.opts.LookAgain))
}

// Resync lets every manager that is known look at the whole runtime: changes may have gone by unseen. With [Options].ResyncOwners, that is
// each owner that is known. A resync that waits already stands for this one, too. It never blocks, and is counted as other events are.
func (o *Outbox) Resync() {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	// Those that no event came for yet are known from Start on, and before, too.
	for _, manager := range o.opts.Managers {
		o.lane(manager)
	}

	for manager, l := range o.lanes {
		for _, owner := range o.resyncOwners(l) {
			if o.stopped {
				o.refuse(manager, ReasonShutdown)
			} else {
				o.missed(l, owner, now)
			}
		}
	}
}

// resyncOwners returns who a resync of a whole lane is for.
func (o *Outbox) resyncOwners(l *lane) []types.NamespacedName {
	if o.opts.ResyncOwners {
		return l.owners
	}

	return []types.NamespacedName{nobody()}
}

// resyncKnown asks for a resync of each owner that is known, where a source knows none for what it could not read.
func (o *Outbox) resyncKnown(l *lane, now time.Time) Outcome {
	if len(l.owners) == 0 {
		o.refuse(l.manager, ReasonNoOwner)

		return Dropped
	}

	for _, owner := range l.owners {
		o.resync(l, owner, now)
	}

	return Accepted
}

// overflow drops an event and lets a resync stand in for it. There is one for each owner, as contract v1 knows the
// runtime by its owner only.
func (o *Outbox) overflow(l *lane, event core.WatchEvent, now time.Time) Outcome {
	o.refuse(l.manager, ReasonOverflow)
	o.keep(l, l.standIn(event), now, o.opts.LookAgain)

	return Dropped
}

// standIn returns the resync that takes the place of an event that is lost.
func (l *lane) standIn(event core.WatchEvent) core.WatchEvent {
	resync := core.WatchEvent{Kind: core.KindResync, Owner: event.Owner, Time: event.Time}
	if l.entries[resync.Key()] == nil && l.resyncs >= MaxOwners {
		resync.Owner = nobody()
	}

	return resync
}

// nobody is the owner of a resync that is for the whole runtime.
func nobody() types.NamespacedName { return types.NamespacedName{} }

// meet takes note of an owner, and reports whether it was unknown until now.
func (l *lane) meet(owner types.NamespacedName) bool {
	if owner == nobody() || len(l.owners) >= MaxOwners || slices.Contains(l.owners, owner) {
		return false
	}

	l.owners = append(l.owners, owner)

	return true
}
