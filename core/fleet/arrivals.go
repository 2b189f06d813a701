package fleet

import (
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxArrivals bounds the numbers that are noted for a replica. A forgotten one counts as one that
// another replica of the operator may have taken.
const maxArrivals = 256

// arrivals are the numbers of events that came to this replica of the operator, above the highest
// one that was observed, in rising order.
type arrivals []uint64

// noteNumbers adds the numbers of a batch that are above last.
func (a *arrivals) noteNumbers(batch *core.Batch, last uint64) {
	for i := range batch.Events {
		sequence := batch.Events[i].Sequence
		at, known := slices.BinarySearch(*a, sequence)
		if !known && sequence > last {
			*a = slices.Insert(*a, at, sequence)
		}
	}

	a.forgetFirst(len(*a) - maxArrivals)
}

// haveAll reports whether each number from the first one to the last one came here. It is true if
// there is no such number.
func (a *arrivals) haveAll(first, last uint64) bool {
	if first > last {
		return true
	}
	from, hasFirst := slices.BinarySearch(*a, first)
	to, hasLast := slices.BinarySearch(*a, last)
	return hasFirst && hasLast && uint64(to-from) == last-first //nolint:gosec // It is not negative.
}

// endAt forgets the numbers up to last.
func (a *arrivals) endAt(last uint64) {
	at, known := slices.BinarySearch(*a, last)
	if known {
		at++
	}
	a.forgetFirst(at)
}

// forgetFirst removes the first n numbers.
func (a *arrivals) forgetFirst(n int) {
	*a = slices.Delete(*a, 0, max(n, 0))
}
