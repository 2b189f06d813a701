package lab

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// Write is a write that the API server has confirmed.
type Write struct {
	// Object is the name of the object.
	Object string
	// Version is the resource version that the write led to, 0 for a delete.
	Version uint64
	// Sent and Returned are the times at which the writer began and got the answer. The write was
	// committed between these times. See [record.Now].
	Sent, Returned time.Duration
}

// Ledger contains the writes that an operator must observe. All its methods may be called
// concurrently.
type Ledger struct {
	mu     sync.Mutex
	writes map[string][]Write
	count  int
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{writes: make(map[string][]Write)} }

// Add adds a write. Writes to one object are added in their order.
func (l *Ledger) Add(w Write) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.writes[w.Object] = append(l.writes[w.Object], w)
	l.count++
}

// Count returns how many writes there are.
func (l *Ledger) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Objects returns the names of the objects that were written.
func (l *Ledger) Objects() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.writes))
}

// history returns the writes to an object, in their order.
func (l *Ledger) history(object string) []Write {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.writes[object])
}

// Verdict is the result for one object.
type Verdict struct {
	// Last is the last write to the object.
	Last Write
	// Looks is the number of looks at the object.
	Looks int
	// Seen reports whether a look that started after the last write saw it, and At when the first
	// such look started.
	Seen bool
	At   time.Duration
	// Early means that no look before At saw the last write, and that this one started while the
	// write was under way: as it saw it, it read after the commit.
	Early bool
	// Stale means that there were looks after the last write had begun, but that they saw the
	// object as it was before it.
	Stale bool
	// Resync means that it was a look at the whole runtime.
	Resync bool
}

// Judge compares the last write to each object with the looks of the operator.
func (l *Ledger) Judge(looks []record.Look) map[string]Verdict {
	verdicts := make(map[string]Verdict)
	for _, object := range l.Objects() {
		verdicts[object] = judge(l.history(object), looks)
	}
	return verdicts
}

func judge(writes []Write, looks []record.Look) Verdict {
	v := Verdict{Last: writes[len(writes)-1]}
	var before time.Duration // when the last write but one was done

	if len(writes) > 1 {
		before = writes[len(writes)-2].Returned
	}

	for i := range looks {
		look := &looks[i]
		if look.Object != "" && look.Object != v.Last.Object {
			continue
		}

		v.Looks++
		v.Stale = v.Stale || look.Started >= v.Last.Sent
		// A look that saw an earlier state proves nothing, nor does one that may have.
		if look.Started < before || !saw(look, v.Last) || v.Seen && look.Started >= v.At {
			continue
		}

		v.Seen = true
		v.At = look.Started
		v.Resync = look.Object == ""
		v.Early = look.Started < v.Last.Returned
	}

	v.Stale = v.Stale && !v.Seen
	return v
}

// saw reports whether a look found the state of the write, or a newer one. Changes of metadata do
// not count as writes.
func saw(look *record.Look, w Write) bool {
	text, found := look.Versions[w.Object]
	if w.Version == 0 || !found {
		return w.Version == 0 && !found
	}

	version, err := strconv.ParseUint(text, 10, 64) // Comparable: KEP-5504.
	return err == nil && version >= w.Version
}
