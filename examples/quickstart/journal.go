package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// journal has an entry for each decision, delivery and reconcile. The zero value is ready to use.
type journal struct {
	mu sync.Mutex
	// live gets each new entry, with a text about it.
	live    func(where, text string)
	entries []entry
}

// entry is a decision of the agent, a delivery to the listener or a reconcile of the operator.
type entry struct {
	where   string
	runtime core.RuntimeID
	// about is the decision, the object of the event, or the state that the reconcile has read.
	about string
	// began is the start of a reconcile.
	began time.Time
}

const agentDecides, listenerAccepts, operatorReconciles = "agent", "listener", "operator"

// aResync takes the place of an object.
const aResync = "a resync"

func (j *journal) enter(e entry, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	if j.live != nil {
		j.live(e.where, fmt.Sprintf(format, args...))
	}
}

// follow makes live get each new entry.
func (j *journal) follow(live func(where, text string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = live
}

// now returns the number of entries.
func (j *journal) now() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

// since returns the entries of a place, without the first entries of the journal.
func (j *journal) since(first int, where string) (found []entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.entries[first:]), func(e entry) bool { return e.where != where })
}
