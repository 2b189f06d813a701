package outbox

import (
	"hash/maphash"
	"iter"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// index finds the entries of a lane by their keys. It keeps a hash of each key instead of the key,
// because a map of keys takes about 190 bytes more for each entry. Strangers choose how many
// entries there are. All methods need the lock of the lane.
type index struct {
	// hash has a random seed, so that no sender can choose keys of one hash.
	hash func(core.EventKey) uint64
	// byHash contains the first entry of each hash. Entry.collided leads to the other entries.
	byHash map[uint64]*entry
	count  int
}

func newIndex() index {
	seed := maphash.MakeSeed()
	return index{
		hash:   func(key core.EventKey) uint64 { return maphash.Comparable(seed, key) },
		byHash: make(map[uint64]*entry),
	}
}

func (x *index) len() int { return x.count }

// find returns nil if no entry has the key.
func (x *index) find(key core.EventKey) *entry {
	for e := x.byHash[x.hash(key)]; e != nil; e = e.collided {
		if e.Key() == key {
			return e
		}
	}
	return nil
}

// addEntry takes an entry with a key that no other entry has.
func (x *index) addEntry(e *entry) {
	hash := x.hash(e.Key())
	e.collided = x.byHash[hash]
	x.byHash[hash] = e
	x.count++
}

// removeEntry takes an entry out that addEntry has taken in.
func (x *index) removeEntry(e *entry) {
	hash := x.hash(e.Key())
	x.count--

	first := x.byHash[hash]
	if first != e {
		for first.collided != e {
			first = first.collided
		}
		first.collided = e.collided
		return
	}

	if e.collided == nil {
		delete(x.byHash, hash)
		return
	}
	x.byHash[hash] = e.collided
}

func (x *index) clear() {
	clear(x.byHash)
	x.count = 0
}

// all yields each entry once, in no order.
func (x *index) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, first := range x.byHash {
			for e := first; e != nil; e = e.collided {
				if !yield(e) {
					return
				}
			}
		}
	}
}
