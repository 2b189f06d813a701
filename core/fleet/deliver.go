package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	reviewInterval = time.Second
	deliverTimeout = 5 * time.Second
	retryDelay     = time.Second
	// maxDeliveries are of one manager, as each may hang for deliverTimeout.
	maxDeliveries = 32
)

// Start reviews the runtimes every second and delivers resyncs to the handlers of their managers,
// until ctx ends. A review calls the observers and forgets runtimes that are silent for too long. A
// delivery that fails is tried again. Start blocks and waits for its goroutines.
//
// It may run several times with handlers for different managers, as for two listeners. It fails
// when another Start has a handler for one of the managers, or a handler is nil.
func (r Receiver) Start(ctx context.Context, handlers map[core.Manager]core.Handler) error {
	f := r.fleet
	if err := f.serve(handlers); err != nil {
		return err
	}
	defer f.leave(handlers)
	var tasks sync.WaitGroup
	defer tasks.Wait()

	// Each in a goroutine of its own: a handler that hangs delays its manager only.
	for manager, handler := range handlers {
		tasks.Go(func() { f.deliverTo(ctx, manager, handler) })
	}
	f.reviewEverySecond(ctx)
	return nil
}

func (f *Fleet) serve(handlers map[core.Manager]core.Handler) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for manager, handler := range handlers {
		if option.IsNil(handler) {
			return fmt.Errorf("fleet: the handler of manager %q is nil", manager)
		}
		if _, taken := f.served[manager]; taken {
			return fmt.Errorf("fleet: resyncs of the manager are delivered elsewhere already: "+
				"want one handler for each manager: %q", manager)
		}
		f.settled[manager] = true
	}
	maps.Copy(f.served, handlers)
	return nil
}

func (f *Fleet) leave(handlers map[core.Manager]core.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for manager := range handlers {
		delete(f.served, manager)
	}
	if len(f.served) == 0 {
		f.leads = time.Time{}
	}
}

func (f *Fleet) reviewEverySecond(ctx context.Context) {
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

// slice bounds the records that are reviewed under one lock: requests of runtimes wait for it.
const slice = 500

func (f *Fleet) reviewAll() {
	ready := f.readyManagers()
	f.noteLeading(ready)
	for _, manager := range f.adopt(ready, time.Now()) {
		f.warnUnserved(manager)
	}
	for some := range slices.Chunk(f.keys(), slice) {
		f.reviewSome(some)
	}
	f.notify()
}

func (f *Fleet) keys() []key {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.AppendSeq(make([]key, 0, len(f.records)), maps.Keys(f.records))
}

func (f *Fleet) reviewSome(keys []key) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range keys {
		r := f.records[k]
		if r == nil {
			continue
		}
		f.review(r, now)

		// A runtime with heartbeats at longer intervals is neither stale nor unknown.
		if r.expected.IsZero() && now.Sub(r.lastSeen) > f.opts.ForgetAfter && (r.state == Stale || r.state == Unknown) {
			f.remove(k)
		}
	}
}

func (f *Fleet) deliverTo(ctx context.Context, manager core.Manager, handler core.Handler) {
	ticker := time.NewTicker(reviewInterval)
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
			f.deliver(ctx, handler, k)
		})
	}
	for ctx.Err() == nil {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, d := range f.due(manager, time.Now()) {
			select {
			case <-pace.C:
				deliver(d.key)
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *Fleet) due(manager core.Manager, now time.Time) []dueResync {
	due := f.collectDue(manager, now)
	slices.SortFunc(due, func(a, b dueResync) int { return a.at.Compare(b.at) })
	return due
}

type dueResync struct {
	key

	at time.Time
}

// collectDue copies, so that sorting needs no lock.
func (f *Fleet) collectDue(manager core.Manager, now time.Time) (due []dueResync) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, r := range f.resyncs {
		if k.manager == manager && !f.delivers[k] && !r.due.After(now) {
			due = append(due, dueResync{k, r.due})
		}
	}
	return due
}

func (f *Fleet) deliver(ctx context.Context, handler core.Handler, k key) {
	claimed := f.claim(k)
	if claimed == nil {
		return
	}
	defer f.endDelivery(k)

	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()

	now := time.Now()
	event := core.WatchEvent{Resync: true, Time: now}

	log := f.opts.Logger.With(slog.String("runtime", string(k.runtime)), slog.String("manager", string(k.manager)),
		slog.String("cause", string(claimed.cause)))

	if err := handler.Handle(ctx, core.Delivery{Runtime: k.runtime, Manager: k.manager, Event: event, Received: now}); err != nil {
		log.DebugContext(ctx, "resync not taken, it is delivered again", slog.Any("error", err))
		f.giveBack(k, claimed)
		return
	}

	log.DebugContext(ctx, "resync delivered")
	f.delivered(k.manager, claimed.cause)
}

// claim removes a resync from those to come: a later cause needs another one.
func (f *Fleet) claim(k key) *resync {
	f.mu.Lock()
	defer f.mu.Unlock()
	claimed := f.resyncs[k]
	if claimed != nil {
		delete(f.resyncs, k)
		f.delivers[k] = true
	}
	return claimed
}

// endDelivery lets the next resync of a runtime begin. One at a time, so that a handler that hangs
// for one runtime takes one of the places.
func (f *Fleet) endDelivery(k key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.delivers, k)
}

// giveBack puts a resync back, unless there is another one or the runtime is forgotten.
func (f *Fleet) giveBack(k key, claimed *resync) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.records[k] != nil && f.resyncs[k] == nil {
		claimed.due = time.Now().Add(retryDelay)
		f.resyncs[k] = claimed
	}
}

func (f *Fleet) delivered(manager core.Manager, cause hook.ResyncCause) {
	f.mu.Lock()
	f.tally(manager).resyncs[cause]++
	f.mu.Unlock()
	if f.opts.Resynced != nil {
		f.opts.Resynced(hook.Resync{Manager: manager, Cause: cause})
	}
}

// The causes of resyncs.
const (
	// CauseNewEpoch means that an agent process sent its first request: earlier events may be lost.
	CauseNewEpoch hook.ResyncCause = "new_epoch"
	// CauseGap means that a number of the sequence did not arrive.
	CauseGap hook.ResyncCause = "gap"
	// CauseWentBack means that the sequence is lower than it was.
	CauseWentBack hook.ResyncCause = "went_back"
	// CauseReturned means that a silent runtime sends requests again.
	CauseReturned hook.ResyncCause = "returned"
	// CauseReplicaLost means that one of several replicas stopped sending without a last heartbeat.
	CauseReplicaLost hook.ResyncCause = "replica_lost"
)

// Causes returns all causes.
func Causes() []hook.ResyncCause {
	return []hook.ResyncCause{CauseNewEpoch, CauseGap, CauseWentBack, CauseReturned, CauseReplicaLost}
}

const (
	// longestCommit is longer than the longest timeout of a webhook, 30 s. After it, an API server
	// commits a write.
	longestCommit = 35 * time.Second
	// longestPause is longer than an agent waits after a refusal, 37.5 s by default. A lost replica
	// would have sent a request by then.
	longestPause = 40 * time.Second
)

type resync struct {
	cause hook.ResyncCause
	due   time.Time
}

func (r *resync) postpone(cause hook.ResyncCause, due time.Time) {
	if due.After(r.due) {
		*r = resync{cause, due}
	}
}

// resendOfLoss returns the resend of the resync for a lost replica. It may have ended a moment ago,
// or may end before its next attempt.
func resendOfLoss(now time.Time) resync {
	return resync{CauseReplicaLost, now.Add(longestPause + longestCommit)}
}

func (f *Fleet) schedule(k key, cause hook.ResyncCause, now time.Time) {
	if f.resyncs[k] == nil {
		f.resyncs[k] = &resync{cause, now.Add(time.Duration(f.opts.Random() * float64(f.opts.ResyncJitter)))}
	}
}
