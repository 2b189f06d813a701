package outbox

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// MaxOwners bounds the owners for whom resyncs of one manager are: owners are foreign input.
const MaxOwners = 100

// Resync asks every known manager to look at the whole runtime, because changes may have passed unseen.
// With [Options].ResyncOwners, it asks for each known owner. A resync that waits already stands for
// this one, too. Resync never blocks, and its resyncs are counted like events.
func (o *Outbox) Resync() {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	for _, l := range o.lanes {
		switch {
		case o.stopped:
			l.counts.refuse(ReasonShutdown)
		case o.opts.ResyncOwners:
			o.resyncOwners(l, now)
		default:
			o.resync(l, types.NamespacedName{}, now)
		}
	}
}

// isNews reports whether a manager, or an owner where resyncs are for owners, was unknown until now.
func (o *Outbox) isNews(l *lane, added bool, owner types.NamespacedName) bool {
	if o.opts.ResyncOwners {
		return l.addOwner(owner)
	}

	return added
}

// resync asks for a look at the whole runtime; owner counts only where resyncs are for owners.
func (o *Outbox) resync(l *lane, owner types.NamespacedName, now time.Time) {
	resync := core.WatchEvent{Resync: true, Time: now}

	if o.opts.ResyncOwners {
		if l.addOwner(owner); owner == (types.NamespacedName{}) {
			return
		}

		resync.Owner = owner
	}

	if l.entries[resync.Key()] == nil && len(l.entries)-l.keys > MaxOwners {
		return // Foreign owners beyond the bound have no resync.
	}

	o.keep(l, resync, now)
}

// resyncOwners asks for a resync of each known owner.
func (o *Outbox) resyncOwners(l *lane, now time.Time) core.Outcome {
	if len(l.owners) == 0 {
		return l.counts.refuse(ReasonNoOwner)
	}

	for _, owner := range l.owners {
		o.resync(l, owner, now)
	}

	return core.Accepted
}
