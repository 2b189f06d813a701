package fleet

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

const (
	deliverInterval = time.Second
	deliverTimeout  = 5 * time.Second
	retryDelay      = time.Second
	// maxDeliveries bounds the deliveries to one manager, because each delivery may hang for
	// deliverTimeout.
	maxDeliveries = 32
)

// deliverTo delivers the due resyncs of a manager until ctx ends. It returns when its calls have
// returned.
func (f *Fleet) deliverTo(ctx context.Context, manager core.Manager, handler core.Handler) {
	ticker := time.NewTicker(deliverInterval)
	defer ticker.Stop()
	pace := time.NewTicker(max(time.Second/time.Duration(f.opts.ResyncsPerSecond), 1))
	defer pace.Stop()

	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make(chan struct{}, maxDeliveries)

	deliver := func(k key) {
		slots <- struct{}{} // The end of ctx ends the calls, and so frees a slot.
		calls.Go(func() {
			defer func() { <-slots }()
			f.deliverResync(ctx, handler, k)
		})
	}

	for ctx.Err() == nil {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}

		for _, d := range f.dueResyncs(manager, time.Now()) {
			select {
			case <-pace.C:
				deliver(d.key)
			case <-ctx.Done():
				return
			}
		}
	}
}

// dueResyncs returns the due resyncs of a manager, the oldest first.
func (f *Fleet) dueResyncs(manager core.Manager, now time.Time) []dueResync {
	due := f.collectDue(manager, now)
	slices.SortFunc(due, func(a, b dueResync) int { return a.at.Compare(b.at) })
	return due
}

func (f *Fleet) collectDue(manager core.Manager, now time.Time) []dueResync {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resyncs.collectDue(manager, now)
}

// deliverResync calls the handler without the lock of the fleet. A resync that the handler refuses
// is due again later.
func (f *Fleet) deliverResync(ctx context.Context, handler core.Handler, k key) {
	claimed := f.claimResync(k)
	if claimed == nil {
		return
	}
	defer f.endDelivery(k)

	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()

	now := time.Now()
	event := core.WatchEvent{Resync: true, Time: now}
	err := handler.Handle(ctx, core.Delivery{Runtime: k.runtime, Manager: k.manager, Event: event, Received: now})

	log := f.opts.Logger.With(slog.String("runtime", string(k.runtime)), slog.String("manager", string(k.manager)),
		slog.String("cause", string(claimed.cause)))
	if err != nil {
		log.DebugContext(ctx, "resync not accepted: it will be delivered again", slog.Any("error", err))
		f.giveBack(k, claimed)
		return
	}

	log.DebugContext(ctx, "resync delivered")
	f.noteDelivered(k.manager, claimed.cause)
}

func (f *Fleet) claimResync(k key) *resync {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resyncs.claimResync(k)
}

func (f *Fleet) endDelivery(k key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resyncs.endDelivery(k)
}

// giveBack puts a resync back, unless the runtime is forgotten.
func (f *Fleet) giveBack(k key, claimed *resync) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records[k] != nil {
		f.resyncs.giveBack(k, claimed, time.Now().Add(retryDelay))
	}
}

func (f *Fleet) noteDelivered(manager core.Manager, cause hook.ResyncCause) {
	f.mu.Lock()
	f.tallies.ensureTally(manager).resyncs[cause]++
	f.mu.Unlock()

	if f.opts.Resynced != nil {
		f.opts.Resynced(hook.Resync{Manager: manager, Cause: cause})
	}
}
