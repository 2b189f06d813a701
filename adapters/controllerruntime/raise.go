package controllerruntime

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// resyncWait is the longest time for which changes delay a request of a resync. It bounds the
	// work that a resync of the whole fleet takes from changes, too.
	resyncWait = 5 * time.Second
	// listedPace is the time between two requests of lists that get the priority of a change. A
	// list may be long, and changes would wait for all of it.
	listedPace = 100 * time.Millisecond
	// mostRaised is the number of requests of one loud runtime that wait for a higher priority. A
	// resync replaces the others.
	mostRaised = 1000
)

// raises gives requests with a low priority the priority of a change after a wait, because a queue
// does not age. The target of the queue calls it when it adds such a request, and when a reconcile
// begins. mu guards the fields below it.
type raises[request comparable] struct {
	queue     priorityqueue.PriorityQueue[request]
	isStopped func() bool

	mu sync.Mutex
	// raised contains the requests that wait.
	raised map[request]*raise
	// waiting counts the requests that wait for one another: requests of lists, and for the changes
	// of each loud runtime.
	waiting map[core.RuntimeID]int
	// begun contains the last requests that a reconcile has begun with.
	begun begun[request]
}

// raise is the time from which a request is in the queue, and the one at which its timer gives it
// the priority of a change.
type raise struct {
	begin, end time.Time
	// of is the loud runtime, and isPaced whether the request waits for others of it, or of lists.
	of      core.RuntimeID
	isPaced bool
	// newest is when the request was added last.
	newest time.Time
	timer  *time.Timer
}

// raiseResync makes a request, which comes into the queue after a wait, wait for another
// resyncWait.
func (r *raises[request]) raiseResync(resync request, wait time.Duration) {
	now := time.Now()
	begin := now.Add(wait)
	end := begin.Add(resyncWait)

	r.mu.Lock()
	defer r.mu.Unlock()

	earlier := r.raised[resync]
	if earlier == nil || end.Before(earlier.end) {
		r.raiseAfter(resync, &raise{begin: begin, end: end})
		return
	}
	earlier.newest = now
}

// raiseListed makes the requests of a list, or of a loud runtime, wait for resyncWait and for one
// another. It returns false if a loud runtime has too many that wait. A list has no more than its
// caller lets wait.
func (r *raises[request]) raiseListed(of core.RuntimeID, requests []request) (hasRoom bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	now := time.Now()
	hasRoom = true
	for _, listed := range requests {
		earlier := r.raised[listed]
		end := now.Add(resyncWait + r.paceOf(of))
		switch {
		case earlier != nil && !end.Before(earlier.end): // The poll of a runtime has a later end.
			earlier.newest = now
		case of != "" && r.waiting[of] >= mostRaised:
			hasRoom = false
		default:
			r.raisePaced(of, listed, resyncWait, now)
		}
	}
	return hasRoom
}

// noteBegin notes that a request is being reconciled, so that the request needs no higher priority,
// unless the reconcile fails. A request that came a moment ago may be in the queue again.
func (r *raises[request]) noteBegin(begins request) {
	r.mu.Lock()
	defer r.mu.Unlock()

	at := r.raised[begins]
	if at == nil || time.Since(at.newest) < listedPace {
		return
	}

	r.endRaise(begins)
	r.followFailure(begins, at, r.queue.NumRequeues(begins))
}

// raisePaced makes a request also wait for the requests of the same list or loud runtime. The
// caller must hold the lock.
func (r *raises[request]) raisePaced(of core.RuntimeID, paced request, wait time.Duration, now time.Time) {
	end := now.Add(wait + r.paceOf(of))
	r.waiting[of]++
	r.raiseAfter(paced, &raise{begin: now, end: end, of: of, isPaced: true})
}

// paceOf returns how long the next request of a list or of a loud runtime waits for the others. The
// caller must hold the lock.
func (r *raises[request]) paceOf(of core.RuntimeID) time.Duration {
	return time.Duration(r.waiting[of]) * listedPace
}

// raiseAfter adds a request again at the end of its wait, unless the queue was empty before. The
// caller must hold the lock. A queue does not report whether a request is in it. Under load a
// request that was reconciled without [Source.Client] is therefore reconciled once more.
func (r *raises[request]) raiseAfter(waits request, at *raise) {
	r.endRaise(waits)
	r.raised[waits] = at
	at.newest = at.begin
	at.timer = time.AfterFunc(time.Until(at.end), func() { r.endWait(waits, at) })
}

// endWait is called by the timer of a request.
func (r *raises[request]) endWait(waits request, at *raise) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.raised[waits] != at {
		return
	}

	isFailed := r.queue.NumRequeues(waits) > 0 // A queue does not count a request in its backoff.
	if !isFailed && (r.isStopped() || r.queue.Len() == 0) {
		r.endEarlier(at.end)
		return
	}

	r.endRaise(waits)
	r.raisePriority(waits)
}

// endEarlier ends the waits of all requests that came into the queue at least a second before it
// was empty. The second is there because a queue counts a request a moment after its wait. The
// caller must hold the lock.
func (r *raises[request]) endEarlier(empty time.Time) {
	for other, raised := range r.raised {
		if empty.Sub(raised.begin) >= time.Second {
			r.endRaise(other)
			r.followFailure(other, raised, 0)
		}
	}
}

// endRaise makes a request wait for a higher priority no longer. The caller must hold the lock.
func (r *raises[request]) endRaise(waits request) {
	at := r.raised[waits]
	if at == nil {
		return
	}

	at.timer.Stop()
	delete(r.raised, waits)
	if !at.isPaced {
		return
	}

	r.waiting[at.of]--
	if r.waiting[at.of] == 0 {
		delete(r.waiting, at.of)
	}
}

// followFailure finds out whether a request fails once more. Without a failure, it needs no higher
// priority. The caller must hold the lock.
func (r *raises[request]) followFailure(begins request, was *raise, failures int) {
	now := time.Now()
	oldest := r.begun.makeRoom()
	if oldest != nil {
		r.raiseFailed(oldest, now) // Its reconcile has most likely ended.
	}

	r.begun.addRequest(&begunRequest[request]{
		request: begins, at: now, failures: failures, of: was.of, isPaced: was.isPaced,
	})
	r.checkLater()
}

// checkLater starts the timer of the next check. The caller must hold the lock.
func (r *raises[request]) checkLater() {
	if !r.begun.isChecking {
		r.begun.isChecking = true
		time.AfterFunc(resyncWait, r.checkBegun)
	}
}

// checkBegun gives the requests that have failed the priority of a change, and forgets old ones.
func (r *raises[request]) checkBegun() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.begun.isChecking = false
	followed := r.begun.takeAll()
	if r.isStopped() {
		return
	}

	now := time.Now()
	for _, b := range followed {
		if !r.raiseFailed(b, now) && now.Sub(b.at) < begunFor {
			r.begun.addRequest(b)
		}
	}
	if len(r.begun.requests) > 0 {
		r.checkLater()
	}
}

// raiseFailed reports whether a request has failed, and gives it the priority of a change. Requests
// of a list or of a loud runtime wait for one another again: all of them may fail. The caller must
// hold the lock.
func (r *raises[request]) raiseFailed(b *begunRequest[request], now time.Time) (failed bool) {
	if r.queue.NumRequeues(b.request) <= b.failures {
		return false
	}

	hasRoom := b.of == "" || r.waiting[b.of] < mostRaised
	switch {
	case r.raised[b.request] != nil:
	case !b.isPaced:
		r.raisePriority(b.request)
	case hasRoom:
		r.raisePaced(b.of, b.request, 0, now)
	}
	return true
}

// raisePriority gives a request the priority of a change. One that has failed keeps its backoff,
// because a queue takes the earlier of two times.
func (r *raises[request]) raisePriority(waits request) {
	if r.queue.NumRequeues(waits) > 0 {
		r.queue.AddWithOpts(priorityqueue.AddOpts{After: longestBackoff}, waits)
		return
	}
	r.queue.Add(waits)
}
