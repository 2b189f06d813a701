package outbox

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxOwners bounds the owners with resyncs of one manager, and the resyncs of owners that are only
// named: owners are foreign input.
const maxOwners = 100

// owners are those with resyncs, at most maxOwners. A pod chooses the owner of an event, so an
// owner that is only named gives way to one of which the receiver has taken an event.
type owners struct{ taken, named []types.NamespacedName }

// addNamed adds an owner that is only named, and reports whether it was new and had room.
func (o *owners) addNamed(owner types.NamespacedName) (added bool) {
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

func (o *owners) removeOwner(owner types.NamespacedName) {
	o.taken = without(o.taken, owner)
	o.named = without(o.named, owner)
}

func (o *owners) hasTaken(owner types.NamespacedName) bool { return slices.Contains(o.taken, owner) }

func (o *owners) all() []types.NamespacedName { return slices.Concat(o.taken, o.named) }

func without(owners []types.NamespacedName, owner types.NamespacedName) []types.NamespacedName {
	return slices.DeleteFunc(owners, func(known types.NamespacedName) bool { return known == owner })
}

// resyncPace contains the time at which the last delivered resync of each owner was sent. Foreign
// input, such as a review that cannot be parsed, can request resyncs without end.
type resyncPace map[types.NamespacedName]time.Time

// resyncInterval is the shortest time between a delivered resync of a manager and the next resync.
// A resync that is requested earlier waits.
const resyncInterval = 5 * time.Second

// noteSent keeps the owners of the last interval only: owners are foreign input.
func (p resyncPace) noteSent(owner types.NamespacedName, sent time.Time) {
	if len(p) >= maxOwners {
		maps.DeleteFunc(p, func(_ types.NamespacedName, last time.Time) bool {
			return sent.Sub(last) >= resyncInterval
		})
	}
	p[owner] = sent
}

// dueTime postpones a resync that would be due too early.
func (p resyncPace) dueTime(owner types.NamespacedName, due time.Time) time.Time {
	last, isAgain := p[owner]
	if !isAgain {
		return due
	}
	return latest(due, last.Add(resyncInterval))
}
