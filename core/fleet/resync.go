package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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

// Causes returns every cause for which a fleet asks for a resync.
func Causes() []string {
	return []string{CauseNewEpoch, CauseGap, CauseWentBack, CauseReturned, CauseReplicaLost}
}

const (
	reviewInterval = time.Second
	deliverTimeout = 5 * time.Second
	retryDelay     = time.Second
)

// ErrManagerTaken means that a fleet delivers the resyncs of a manager elsewhere already.
var ErrManagerTaken = errors.New("resyncs of the manager are delivered elsewhere already: want one handler for each manager")

// resync is one that is to come.
type resync struct {
	cause string
	due   time.Time
}

// schedule asks for a resync. Causes that come while one is to come share it.
func (f *Fleet) schedule(k key, cause string, now time.Time) {
	if f.resyncs[k] == nil {
		f.resyncs[k] = &resync{cause, now.Add(time.Duration(f.opts.Random() * float64(f.opts.ResyncJitter)))}
	}
}

// Start reviews the runtimes every second, calls the observers, forgets who was silent too long, and delivers the resyncs of the
// managers that have a handler, until ctx ends. A delivery that its handler does not take is tried again. It blocks.
//
// It may be called again meanwhile with handlers for other managers, by a second listener for instance: the runtimes are reviewed
// once all the same. It fails at once, with [ErrManagerTaken], when a manager is served already.
func (f *Fleet) Start(ctx context.Context, handlers map[core.Manager]core.Handler) error {
	if err := f.serve(handlers); err != nil {
		return err
	}
	defer f.leave(handlers)

	var tasks sync.WaitGroup
	defer tasks.Wait()

	// Apart from each other: neither a handler that hangs nor a long queue may delay what else there is to do.
	for manager, handler := range handlers {
		tasks.Go(func() { f.deliverTo(ctx, manager, handler) })
	}

	f.reviewInTurn(ctx)

	return nil
}

func (f *Fleet) serve(handlers map[core.Manager]core.Handler) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	for manager := range handlers {
		if _, taken := f.served[manager]; taken {
			return fmt.Errorf("fleet: %w: %q", ErrManagerTaken, manager)
		}
	}

	for manager := range handlers {
		f.served[manager] = struct{}{}
	}

	return nil
}

func (f *Fleet) leave(handlers map[core.Manager]core.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for manager := range handlers {
		delete(f.served, manager)
	}
}

// reviewInTurn reviews the runtimes, or waits until nobody else does.
func (f *Fleet) reviewInTurn(ctx context.Context) {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-f.turn }()

	ticker := time.NewTicker(reviewInterval)
	defer ticker.Stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			f.reviewAll()
		}
	}
}

func (f *Fleet) reviewAll() {
	now := time.Now()

	f.mu.Lock()

	for k, r := range f.records {
		f.review(r, now)

		// One that beats more seldom than that is still here.
		if now.Sub(r.heard) > f.opts.ForgetAfter && (r.state == Stale || r.state == Unknown) {
			f.remove(k)
		}
	}

	f.mu.Unlock()
	f.tell()
}

// deliverTo delivers the resyncs of one manager when they are due, at the pace that the options allow.
func (f *Fleet) deliverTo(ctx context.Context, manager core.Manager, handler core.Handler) {
	ticker := time.NewTicker(reviewInterval)
	defer ticker.Stop()

	pace := time.NewTicker(max(time.Second/time.Duration(f.opts.ResyncsPerSecond), 1))
	defer pace.Stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			f.deliverDue(ctx, manager, handler, pace.C)
		}
	}
}

func (f *Fleet) deliverDue(ctx context.Context, manager core.Manager, handler core.Handler, pace <-chan time.Time) {
	for _, d := range f.due(manager, time.Now()) {
		select {
		case <-pace:
		case <-ctx.Done():
			return
		}

		f.deliver(ctx, handler, d)
	}
}

// due returns whose resync is due, in that order.
func (f *Fleet) due(manager core.Manager, now time.Time) (due []key) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for k, r := range f.resyncs {
		if k.manager == manager && !r.due.After(now) {
			due = append(due, k)
		}
	}

	slices.SortFunc(due, func(a, b key) int { return f.resyncs[a].due.Compare(f.resyncs[b].due) })

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
	event := core.WatchEvent{Resync: true, Time: now}

	log := f.opts.Logger.With(slog.String("runtime", string(k.runtime)), slog.String("manager", string(k.manager)),
		slog.String("cause", claimed.cause))

	if err := handler.Handle(ctx, core.Delivery{Runtime: k.runtime, Manager: k.manager, Event: event, Received: now}); err != nil {
		log.DebugContext(ctx, "resync was not taken, it is tried again", slog.Any("error", err))
		f.giveBack(k, claimed)

		return
	}

	log.InfoContext(ctx, "runtime is looked at as a whole")
	f.delivered(k.manager, claimed.cause)
}

// claim takes a resync out of those to come: a cause that comes from now on is a new one.
func (f *Fleet) claim(k key) *resync {
	f.mu.Lock()
	defer f.mu.Unlock()

	claimed := f.resyncs[k]
	delete(f.resyncs, k)

	return claimed
}

// giveBack puts a resync back, unless there is a new one, or the runtime is forgotten.
func (f *Fleet) giveBack(k key, claimed *resync) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.records[k] != nil && f.resyncs[k] == nil {
		claimed.due = time.Now().Add(retryDelay)
		f.resyncs[k] = claimed
	}
}

func (f *Fleet) delivered(manager core.Manager, cause string) {
	f.mu.Lock()
	f.tally(manager).resyncs[cause]++
	f.mu.Unlock()

	if f.opts.Hooks.Resynced != nil {
		f.opts.Hooks.Resynced(manager, cause)
	}
}
