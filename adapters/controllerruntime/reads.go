package controllerruntime

import (
	"maps"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// reads remembers the versions that reconciles have read of objects in recent events. An event
// needs no reconcile if a reconcile has read its write. All fields are guarded by mu.
type reads[request comparable] struct {
	mu       sync.Mutex
	runtimes map[core.RuntimeID]map[place[request]]*awaited
	// bySize contains the runtimes by the number of their objects, so that a full table finds the
	// runtime with the most objects without a search.
	bySize [maxAwaitedOfRuntime + 1]map[core.RuntimeID]struct{}
	size   int
	swept  time.Time
	// resynced contains the last resync of each runtime, for as long as a resend of it may come.
	resynced map[core.RuntimeID]lastResync
	// order counts first events and first deletions, so that a reconcile knows whether it began
	// after them.
	order uint64
	// used means that a reconcile has called [Source.Client], and warned that the log says that no
	// reconcile does.
	used, warned bool
	// matched means that a reconcile has read an object that an event names.
	matched bool
	// rechecks contains the writes that a reconcile may have read too early.
	rechecks rechecks[request]
}

// observeEvent notes an event, and returns when its request is due. It also schedules the check
// that follows an event which a sender may have sent before the commit. Unused means, once, that
// reconciles had half a minute since the last event to call Client.
func (r *reads[request]) observeEvent(
	runtime core.RuntimeID, to request, event *core.WatchEvent,
) (at due, unused bool) {
	if event.UID == "" {
		return dueNow, false
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	r.sweepPlaces(now)

	where := place[request]{request: to, uid: event.UID, kind: event.WatchedGVK.GroupKind(), name: event.Watched}
	a := r.runtimes[runtime][where]
	if a == nil {
		a = r.addPlace(runtime, where)
		if a == nil {
			return r.postponeRequest(runtime, to, now), false
		}
	} else if !r.used && !r.warned && a.until.Sub(now) < awaitedFor/2 {
		r.warned = true
		unused = true
	}

	a.until = now.Add(awaitedFor)
	if event.Operation == core.OperationDelete && a.deletionOrder == 0 {
		r.order++
		a.deletionOrder = r.order
	}

	isResend := !event.Time.IsZero() && event.Time.Equal(a.newest) && event.Base == a.base
	a.newest = event.Time
	a.base = event.Base

	switch {
	case a.hasReadLately(event, now):
		return dueNever, unused
	case isResend:
		return dueNow, unused // It comes long after the write.
	default:
		return r.expectRead(runtime, where, event, now), unused
	}
}

// lastResync is a resync that has ended the reads of its runtime.
type lastResync struct {
	// at is the time that the event names, and came is when it came.
	at, came time.Time
}

// endReads makes all earlier reads of a runtime count no more. After a resync, the API server may
// have been restored from a backup: its versions start again below those that were read. A
// reconcile that has begun may have read before that, too. A resend of the resync ends nothing,
// because the reads after the first one are of the restored API server.
func (r *reads[request]) endReads(runtime core.RuntimeID, resync *core.WatchEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	r.sweepPlaces(now)
	if last := r.resynced[runtime]; !resync.Time.IsZero() && resync.Time.Equal(last.at) {
		return
	}
	if r.resynced == nil {
		r.resynced = make(map[core.RuntimeID]lastResync)
	}
	r.resynced[runtime] = lastResync{at: resync.Time, came: now}

	r.order++
	for _, a := range r.runtimes[runtime] {
		a.sinceOrder = r.order
		a.version = 0
		a.absent = false
		if a.deletionOrder > 0 {
			a.deletionOrder = r.order
		}
	}
}

// addPlace returns nil without room. In a full table, the runtime with the most objects gives way.
// Otherwise a few runtimes with ever new objects would take the places of all.
func (r *reads[request]) addPlace(runtime core.RuntimeID, at place[request]) *awaited {
	size := len(r.runtimes[runtime])
	if size == maxAwaitedOfRuntime {
		return nil
	}
	if r.size >= maxAwaited && !r.evictPlace(size) {
		return nil
	}

	if r.runtimes[runtime] == nil {
		r.runtimes[runtime] = make(map[place[request]]*awaited)
	}
	r.order++
	a := &awaited{sinceOrder: r.order}
	r.runtimes[runtime][at] = a
	r.noteSize(runtime, size, size+1)
	return a
}

// evictPlace forgets an object of the runtime that has the most, unless that one has hardly more
// objects than size. It reports whether there is room now.
func (r *reads[request]) evictPlace(size int) bool {
	for most := maxAwaitedOfRuntime; most > size+1; most-- {
		for runtime := range r.bySize[most] {
			for at := range r.runtimes[runtime] {
				delete(r.runtimes[runtime], at)
				r.noteSize(runtime, most, most-1)
				return true
			}
		}
	}
	return false
}

// noteSize keeps the number of objects of a runtime, and removes a runtime without objects.
func (r *reads[request]) noteSize(runtime core.RuntimeID, before, after int) {
	r.size += after - before
	delete(r.bySize[before], runtime)
	if after == 0 {
		delete(r.runtimes, runtime)
		return
	}

	if r.bySize[after] == nil {
		r.bySize[after] = make(map[core.RuntimeID]struct{})
	}
	r.bySize[after][runtime] = struct{}{}
}

// sweepPlaces forgets objects without events, at most once in half of awaitedFor.
func (r *reads[request]) sweepPlaces(now time.Time) {
	if now.Sub(r.swept) < awaitedFor/2 {
		return
	}

	r.swept = now

	maps.DeleteFunc(r.resynced, func(_ core.RuntimeID, last lastResync) bool { return now.Sub(last.came) > readFor })
	for runtime, objects := range r.runtimes {
		before := len(objects)
		maps.DeleteFunc(objects, func(_ place[request], a *awaited) bool { return a.until.Before(now) })
		r.noteSize(runtime, before, len(objects))
	}
}

// beginReconcile returns the order of the last event before a reconcile.
func (r *reads[request]) beginReconcile() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = true
	return r.order
}

// isMatched reports whether reconciles read the objects that events name.
func (r *reads[request]) isMatched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.matched
}

// expectRead schedules the check of an event with a place in the table. The caller must hold the
// lock.
func (r *reads[request]) expectRead(
	runtime core.RuntimeID, where place[request], event *core.WatchEvent, now time.Time,
) due {
	if !r.matched {
		return dueNow // No sender knows of checks.
	}

	c := r.rechecks.runtimes[runtime][where]
	if c != nil {
		c.noteEvent(event, now)
		return dueNow
	}

	c = r.addRecheck(runtime, where, now)
	if c == nil {
		return dueInQueue
	}

	c.base = event.Base
	c.deletion = event.Operation == core.OperationDelete
	return dueNow
}

// postponeRequest makes a request without a place in the table wait. No read would make a check
// needless, so that an immediate request would be one too many. The caller must hold the lock.
func (r *reads[request]) postponeRequest(runtime core.RuntimeID, to request, now time.Time) due {
	if !r.matched {
		return dueNow
	}

	where := place[request]{request: to}
	c := r.rechecks.runtimes[runtime][where]
	if c == nil {
		c = r.addRecheck(runtime, where, now)
	}
	if c == nil {
		return dueInQueue
	}

	c.newest = now
	return dueLater
}

// addRecheck starts the timer of a check. It returns nil without room. The caller must hold the
// lock.
func (r *reads[request]) addRecheck(runtime core.RuntimeID, where place[request], now time.Time) *recheck {
	c := r.rechecks.addCheck(runtime, where, now)
	if c == nil {
		return nil
	}

	c.timer = time.AfterFunc(recheckAfter, func() {
		if r.endRecheck(runtime, where, c) {
			r.rechecks.again(runtime, where.request)
		}
	})
	return c
}

// endRecheck ends a check, and reports whether its request is to be enqueued. A check without a
// place in the table, because there was none or it was lost, has no read that counts.
func (r *reads[request]) endRecheck(runtime core.RuntimeID, where place[request], c *recheck) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	if now.Before(c.end) {
		return false // It was moved while its timer fired, and the timer fires again.
	}

	isPostponed := where.uid == ""
	if isPostponed && c.continueAfter(now) {
		return true
	}

	r.rechecks.removeCheck(runtime, where)
	a := r.runtimes[runtime][where]
	if a == nil {
		return true
	}

	event := c.lastEvent()
	return !a.hasReadLately(&event, now)
}
