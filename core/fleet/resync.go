package fleet

import (
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The causes for which a fleet asks for a resync.
const (
	// CauseNewEpoch means that an agent process was heard for the first time: what came before it may be lost.
	CauseNewEpoch = "new_epoch"
	// CauseGap means that a running number was left out.
	CauseGap = "gap"
	// CauseWentBack means that the running number is lower than it was.
	CauseWentBack = "went_back"
	// CauseReturned means that a runtime was silent, and is heard again.
	CauseReturned = "returned"
	// CauseReplicaLost means that one of several replicas fell silent without taking its leave.
	CauseReplicaLost = "replica_lost"
)

const (
	reviewInterval = time.Second
	deliverTimeout = 5 * time.Second
	retryDelay     = time.Second
)

// resync is one that is to come.
type resync struct {
	cause string
	due   time.Time
}

// schedule asks for a resync. Causes that come while one is to come share it.
func (f *Fleet) schedule(r *record, cause string, now time.Time) {
	if r.resync != nil {
		return
	}

	r.resync = &resync{cause, now.Add(time.Duration(f.opts.Random() * float64(f.opts.ResyncJitter)))}
}

// Start reviews the runtimes every second, calls the observers, forgets who was silent too long, and delivers resyncs until ctx
// ends. A delivery that handler does not take is tried again. It blocks; the error is always nil.
func (f *Fleet) Start(ctx context.Context, handler core.Handler) error {
	ticker := time.NewTicker(reviewInterval)
	defer ticker.Stop()

	pace := time.NewTicker(time.Second / time.Duration(f.opts.ResyncsPerSecond))
	defer pace.Stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			f.reviewAll()
			f.deliverDue(ctx, handler, pace.C)
		}
	}

	return nil
}

func (f *Fleet) reviewAll() {
	now := time.Now()

	f.mu.Lock()

	var changes []Transition

	for k, r := range f.records {
		changes = f.review(changes, r, now)

		if now.Sub(r.heard) > f.opts.ForgetAfter {
			f.remove(k)
		}
	}

	observers := f.observers
	f.mu.Unlock()
	f.tell(observers, changes)
}

// deliverDue delivers what is due, at the pace that the options allow.
func (f *Fleet) deliverDue(ctx context.Context, handler core.Handler, pace <-chan time.Time) {
	for _, d := range f.due(time.Now()) {
		select {
		case <-pace:
		case <-ctx.Done():
			return
		}

		f.deliver(ctx, handler, d)
	}
}

// due returns the records whose resync is due.
func (f *Fleet) due(now time.Time) (due []key) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for k, r := range f.records {
		if r.resync != nil && !r.resync.due.After(now) {
			due = append(due, k)
		}
	}

	return due
}

func (f *Fleet) deliver(ctx context.Context, handler core.Handler, k key) {
	claimed := f.claim(k)
	if claimed == nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()

	now := time.Now()
	event := core.WatchEvent{Kind: core.KindResync, Source: k.runtime, Time: now}

	log := f.opts.Logger.With(slog.String("runtime", string(k.runtime)), slog.String("manager", string(k.manager)),
		slog.String("cause", claimed.cause))

	if err := handler.Handle(ctx, core.Delivery{Runtime: k.runtime, Manager: k.manager, Event: event, Received: now}); err != nil {
		log.DebugContext(ctx, "resync was not taken, it is tried again", slog.Any("error", err))
		f.giveBack(k, claimed)

		return
	}

	log.InfoContext(ctx, "runtime is looked at as a whole")

	if f.opts.Hooks.Resynced != nil {
		f.opts.Hooks.Resynced(k.manager, claimed.cause)
	}
}

// claim takes the resync out of its record: a cause that comes from now on is a new one.
func (f *Fleet) claim(k key) *resync {
	f.mu.Lock()
	defer f.mu.Unlock()

	r := f.records[k]
	if r == nil {
		return nil
	}

	claimed := r.resync
	r.resync = nil

	return claimed
}

func (f *Fleet) giveBack(k key, claimed *resync) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if r := f.records[k]; r != nil && r.resync == nil {
		claimed.due = time.Now().Add(retryDelay)
		r.resync = claimed
	}
}
