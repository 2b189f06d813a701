package controllerruntime

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// recheckAfter is the time from the arrival of an event to the check whether a reconcile has
	// read its write. Senders that know of no check wait as long before they send an event.
	recheckAfter = 100 * time.Millisecond
	// maxRechecks and maxRechecksOfRuntime bound the checks that wait. Each check takes about 500
	// bytes with its timer.
	maxRechecks          = maxAwaited
	maxRechecksOfRuntime = maxAwaitedOfRuntime
)

// due says when the request of an event is to be enqueued.
type due int

const (
	// dueNow is for most events. A check may follow.
	dueNow due = iota
	// dueNever is for an event with a write that a reconcile has read.
	dueNever
	// dueLater is for an event that does not fit in the table. A timer enqueues its request.
	dueLater
	// dueInQueue is for an event without a free timer. The queue waits.
	dueInQueue
)

// rechecks are the checks that wait. A sender that knows of them sends an event before its write is
// committed, so that a reconcile may read the object too early. The check requests it once more.
//
// Only a reconcile's own read makes a check needless. No event does. All fields but again are
// guarded by the lock of reads.
type rechecks[request comparable] struct {
	runtimes map[core.RuntimeID]map[place[request]]*recheck
	size     int
	// most and mostOfRuntime bound the checks of all runtimes, and of each.
	most, mostOfRuntime int
	// again enqueues a request. It must be called without the lock.
	again func(core.RuntimeID, request)
}

// recheck is the check of one object, or the postponed request of objects that the table has no
// room for.
type recheck struct {
	timer *time.Timer
	// end is the time of the check. A later event of the object moves it, because each event has
	// enqueued its request. It does not move that of a postponed request.
	end time.Time
	// newest is when the last event came.
	newest time.Time
	// base is the highest of the events. deletion is whether all of them are a DELETE.
	base     int64
	deletion bool
}

func newRechecks[request comparable](again func(core.RuntimeID, request)) rechecks[request] {
	return rechecks[request]{
		runtimes: make(map[core.RuntimeID]map[place[request]]*recheck),
		most:     maxRechecks, mostOfRuntime: maxRechecksOfRuntime,
		again: again,
	}
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

	deleted := event.Operation == core.OperationDelete
	c := r.rechecks.runtimes[runtime][where]
	if c == nil {
		c = r.addRecheck(runtime, where, now)
		if c == nil {
			return dueInQueue
		}

		c.base = event.Base
		c.deletion = deleted
		return dueNow
	}

	c.end = now.Add(recheckAfter)
	c.newest = now
	c.base = max(c.base, event.Base)
	c.deletion = c.deletion && deleted
	c.timer.Reset(recheckAfter)
	return dueNow
}

// postpone makes a request without a place in the table wait. No read would make a check needless,
// so that an immediate request would be one too many. The caller must hold the lock.
func (r *reads[request]) postpone(runtime core.RuntimeID, to request, now time.Time) due {
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

// addRecheck returns nil without room.
func (r *reads[request]) addRecheck(runtime core.RuntimeID, where place[request], now time.Time) *recheck {
	all := &r.rechecks
	if all.size >= all.most || len(all.runtimes[runtime]) >= all.mostOfRuntime {
		return nil
	}

	if all.runtimes[runtime] == nil {
		all.runtimes[runtime] = make(map[place[request]]*recheck)
	}
	c := &recheck{end: now.Add(recheckAfter), newest: now}
	all.runtimes[runtime][where] = c
	all.size++
	c.timer = time.AfterFunc(recheckAfter, func() {
		if r.endRecheck(runtime, where, c) {
			all.again(runtime, where.request)
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
	if next := c.newest.Add(recheckAfter); isPostponed && next.After(now) {
		c.end = next // Events came since, and this request may begin too early for them.
		c.timer.Reset(next.Sub(now))
		return true
	}

	all := &r.rechecks
	delete(all.runtimes[runtime], where)
	if len(all.runtimes[runtime]) == 0 {
		delete(all.runtimes, runtime)
	}
	all.size--

	a := r.runtimes[runtime][where]
	if a == nil {
		return true
	}

	event := core.WatchEvent{Base: c.base}
	if c.deletion {
		event.Operation = core.OperationDelete
	}
	return !a.hasReadLately(&event, now)
}

// addLater enqueues a request after the time of a check. The queue waits instead of a timer, so
// that an earlier request of the same object may take its place. The resends remain.
func (t *target[request]) addLater(runtime core.RuntimeID, r request) (hasRoom bool) {
	if t.ranked != nil && t.countChange(runtime) {
		return t.addListed(runtime, r)
	}
	t.queue.AddAfter(r, recheckAfter)
	return true
}
