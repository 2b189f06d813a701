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
	live func(where, text string)

	decisions  []string
	deliveries []core.Delivery
	reconciles []reconciled
}

// reconciled is one call of the reconciler.
type reconciled struct {
	runtime string
	started time.Time
	sees    string
}

// mark is a position in the journal.
type mark struct{ decisions, deliveries, reconciles int }

func (j *journal) decided(decision string) {
	j.enter("agent", "decides: "+decision, func() { j.decisions = append(j.decisions, decision) })
}

func (j *journal) delivered(delivery core.Delivery) {
	object := "a resync"
	if event := delivery.Event; !event.Resync {
		object = fmt.Sprintf("%s %s", event.WatchedGVK.Kind, event.Watched)
	}
	j.enter("listener", fmt.Sprintf("accepts an event of %s: %s", delivery.Runtime, object),
		func() { j.deliveries = append(j.deliveries, delivery) })
}

func (j *journal) reconciled(r reconciled) {
	j.enter("operator", fmt.Sprintf("reconciles %s, sees %s", r.runtime, r.sees),
		func() { j.reconciles = append(j.reconciles, r) })
}

func (j *journal) enter(where, text string, note func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	note()
	if j.live != nil {
		j.live(where, text)
	}
}

// follow makes live get each new entry.
func (j *journal) follow(live func(where, text string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = live
}

// now returns the end of the journal.
func (j *journal) now() mark {
	j.mu.Lock()
	defer j.mu.Unlock()
	return mark{len(j.decisions), len(j.deliveries), len(j.reconciles)}
}

// since returns copies of the entries after a mark.
func (j *journal) since(m mark) (deliveries []core.Delivery, reconciles []reconciled) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.deliveries[m.deliveries:]), slices.Clone(j.reconciles[m.reconciles:])
}

// await returns when condition holds, which is called with the lock of the journal.
func (d *demo) await(what string, condition func() bool) {
	d.poll(what, func() bool {
		d.journal.mu.Lock()
		defer d.journal.mu.Unlock()
		return condition()
	})
}
