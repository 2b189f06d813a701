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
	// enqueued its request. It does not move the time of a postponed request.
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

// addCheck adds a check without its timer. It returns nil without room.
func (c *rechecks[request]) addCheck(runtime core.RuntimeID, where place[request], now time.Time) *recheck {
	if c.size >= c.most || len(c.runtimes[runtime]) >= c.mostOfRuntime {
		return nil
	}

	if c.runtimes[runtime] == nil {
		c.runtimes[runtime] = make(map[place[request]]*recheck)
	}

	added := &recheck{end: now.Add(recheckAfter), newest: now}
	c.runtimes[runtime][where] = added
	c.size++
	return added
}

func (c *rechecks[request]) removeCheck(runtime core.RuntimeID, where place[request]) {
	delete(c.runtimes[runtime], where)
	if len(c.runtimes[runtime]) == 0 {
		delete(c.runtimes, runtime)
	}
	c.size--
}

// noteEvent moves the check behind a later event of its object.
func (c *recheck) noteEvent(event *core.WatchEvent, now time.Time) {
	c.end = now.Add(recheckAfter)
	c.newest = now
	c.base = max(c.base, event.Base)
	c.deletion = c.deletion && event.Operation == core.OperationDelete
	c.timer.Reset(recheckAfter)
}

// continueAfter starts the timer of a postponed request again if events came since it was started,
// because the present request may begin too early for them.
func (c *recheck) continueAfter(now time.Time) bool {
	next := c.newest.Add(recheckAfter)
	if !next.After(now) {
		return false
	}

	c.end = next
	c.timer.Reset(next.Sub(now))
	return true
}

// lastEvent returns the event that a read must cover.
func (c *recheck) lastEvent() core.WatchEvent {
	event := core.WatchEvent{Base: c.base}
	if c.deletion {
		event.Operation = core.OperationDelete
	}
	return event
}
