package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// journal has an entry for each decision, delivery and reconcile. The zero value is ready to use.
type journal struct {
	mu sync.Mutex
	// changed is closed by the next entry.
	changed chan struct{}
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
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
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
func (j *journal) since(m mark) (decisions []string, deliveries []core.Delivery, reconciles []reconciled) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(decisions, j.decisions[m.decisions:]...), append(deliveries, j.deliveries[m.deliveries:]...),
		append(reconciles, j.reconciles[m.reconciles:]...)
}

// await returns when condition holds. It calls condition with the lock of the journal.
func (j *journal) await(ctx context.Context, purpose string, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for {
		changed, holds := j.ask(condition)
		if holds {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", purpose, context.Cause(ctx))
		}
	}
}

func (j *journal) ask(condition func() bool) (changed <-chan struct{}, holds bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed, condition()
}
