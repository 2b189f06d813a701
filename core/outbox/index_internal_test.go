package outbox

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// An index behaves like a map of keys, also when many keys have one hash.
func TestIndexIsAMapOfKeys(t *testing.T) {
	t.Parallel()
	for name, hash := range map[string]func(core.EventKey) uint64{
		"own hash":  newIndex().hash,
		"few of it": func(key core.EventKey) uint64 { return uint64(len(key.Watched.Name)) },
		"one hash":  func(core.EventKey) uint64 { return 7 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			x := newIndex()
			x.hash = hash
			model := make(map[core.EventKey]*entry)
			random := rand.New(rand.NewPCG(1, 2))

			for step := range 5000 {
				var event core.WatchEvent
				event.Watched.Name = strconv.Itoa(random.IntN(150))
				known := x.find(event.Key())

				if known != model[event.Key()] {
					t.Fatalf("find(%s) = %p, want %p", event.Watched.Name, known, model[event.Key()])
				}

				if known == nil {
					known = &entry{Numbered: core.Numbered{WatchEvent: event}}
					x.addEntry(known)
					model[event.Key()] = known
				} else if random.IntN(2) == 0 {
					x.removeEntry(known)
					delete(model, event.Key())
				}

				if step%100 == 0 {
					checkIndex(t, &x, model)
				}
			}
		})
	}
}

func checkIndex(t *testing.T, x *index, model map[core.EventKey]*entry) {
	t.Helper()

	seen := make(map[*entry]bool)
	for e := range x.all() {
		if seen[e] || model[e.Key()] != e {
			t.Fatalf("all yields %s twice, or after it was removed", e.Watched.Name)
		}
		seen[e] = true
	}

	if len(seen) != len(model) || x.len() != len(model) {
		t.Fatalf("the index has %d entries and counts %d, want %d", len(seen), x.len(), len(model))
	}
}
