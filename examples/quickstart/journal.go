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
	// live gets each new entry.
	live    func(entry)
	entries []entry
}

// entry is a decision of the agent, a delivery to the listener or a reconcile of the operator.
type entry struct {
	where   place
	runtime core.RuntimeID
	// what is the decision, the object of the event, or the state that the reconcile has read.
	what string
	// began is the start of a reconcile.
	began time.Time
}

type place string

const (
	agentDecides       place = "agent"
	listenerAccepts    place = "listener"
	operatorReconciles place = "operator"
)

// aResync takes the place of an object.
const aResync = "a resync"

// String describes an entry.
func (e entry) String() string {
	switch e.where {
	case listenerAccepts:
		return fmt.Sprintf("accepts an event of %s: %s", e.runtime, e.what)
	case operatorReconciles:
		return fmt.Sprintf("reconciles %s, sees %s", e.runtime, e.what)
	case agentDecides:
	}
	return "decides: " + e.what
}

func (j *journal) enter(e entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	if j.live != nil {
		j.live(e)
	}
}

// follow makes live get each new entry.
func (j *journal) follow(live func(entry)) {
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
func (j *journal) since(first int, where place) (found []entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.entries[first:]), func(e entry) bool { return e.where != where })
}
