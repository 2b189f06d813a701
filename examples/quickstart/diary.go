package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// diary has an entry for everything that happened. The zero value is empty, and ready to use.
type diary struct {
	mu sync.Mutex
	// changed is closed at the next entry.
	changed chan struct{}
	// live is called with each entry from when it is set.
	live func(where, what string)

	decisions  []string
	deliveries []core.Delivery
	reconciles []reconciled
}

// reconciled is one call of the operator's reconciler.
type reconciled struct {
	runtime string
	started time.Time
	sees    string
}

// mark is a place in the diary.
type mark struct{ decisions, deliveries, reconciles int }

func (d *diary) decided(decision string) {
	d.enter("agent", "decides: "+decision, func() { d.decisions = append(d.decisions, decision) })
}

func (d *diary) delivered(delivery core.Delivery) {
	what := "a resync"
	if event := delivery.Event; !event.Resync {
		what = fmt.Sprintf("%s %s", event.WatchedGVK.Kind, event.Watched)
	}

	d.enter("listener", fmt.Sprintf("takes an event of %s: %s", delivery.Runtime, what),
		func() { d.deliveries = append(d.deliveries, delivery) })
}

func (d *diary) reconciled(r reconciled) {
	d.enter("operator", fmt.Sprintf("reconciles %s, sees %s", r.runtime, r.sees), func() { d.reconciles = append(d.reconciles, r) })
}

func (d *diary) enter(where, what string, note func()) {
	d.mu.Lock()
	defer d.mu.Unlock()

	note()

	if d.live != nil {
		d.live(where, what)
	}

	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// follow has each further entry told.
func (d *diary) follow(live func(where, what string)) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.live = live
}

// now marks the end of the diary.
func (d *diary) now() mark {
	d.mu.Lock()
	defer d.mu.Unlock()

	return mark{len(d.decisions), len(d.deliveries), len(d.reconciles)}
}

// since returns copies of the entries after a mark.
func (d *diary) since(m mark) (decisions []string, deliveries []core.Delivery, reconciles []reconciled) {
	d.mu.Lock()
	defer d.mu.Unlock()

	return append(decisions, d.decisions[m.decisions:]...), append(deliveries, d.deliveries[m.deliveries:]...),
		append(reconciles, d.reconciles[m.reconciles:]...)
}

// await returns when the condition, which is asked while nothing is entered, holds.
func (d *diary) await(ctx context.Context, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()

	for {
		changed, holds := d.ask(condition)
		if holds {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, context.Cause(ctx))
		}
	}
}

func (d *diary) ask(condition func() bool) (changed <-chan struct{}, holds bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.changed == nil {
		d.changed = make(chan struct{})
	}

	return d.changed, condition()
}
