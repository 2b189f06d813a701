package controllerruntime

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// resyncWait is the longest time for which changes delay a request of a resync. It bounds the work
// that a resync of the whole fleet takes from changes, too.
const resyncWait = 5 * time.Second

// listedPace is the time between two requests of lists that get the priority of a change. A list
// may be long, and changes would wait for all of it.
const listedPace = 100 * time.Millisecond

// perSecond is the number of requests for the changes of one runtime, in one second, that have the
// priority of a change.
const perSecond = 20

// mostRaised is the number of requests of one loud runtime that wait for a higher priority. A
// resync replaces the others.
const mostRaised = 1000

// target is the workqueue of the controller that has started a source, with the state that a source
// keeps for it. Each start of a controller gets a new target. mu guards the fields below it, and
// reads and strays have their own locks.
type target[request comparable] struct {
	done  <-chan struct{}
	queue workqueue.TypedRateLimitingInterface[request]
	// ranked is the queue, nil if it has no priorities.
	ranked priorityqueue.PriorityQueue[request]
	reads  reads[request]
	strays strays[request]

	mu sync.Mutex
	// raised has the requests with a low priority that get the priority of a change.
	raised map[request]*raise
	// waiting has the number of those that wait for one another: requests of lists, and for the
	// changes of each loud runtime.
	waiting map[core.RuntimeID]int
	// begun has the last requests with a low priority that a reconcile has begun with.
	begun begun[request]
	// changes counts the requests for the changes of each runtime since second.
	changes map[core.RuntimeID]int
	second  time.Time
	// open has the requests for changes that may be in the queue.
	open open[request]
	// replacing has the resyncs that will replace changes.
	replacing map[replaced]struct{}
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

func newTarget[request comparable](
	done <-chan struct{}, queue workqueue.TypedRateLimitingInterface[request],
) *target[request] {
	ranked, _ := queue.(priorityqueue.PriorityQueue[request])
	t := &target[request]{
		done: done, queue: queue, ranked: ranked,
		raised: make(map[request]*raise), waiting: make(map[core.RuntimeID]int),
		reads: reads[request]{runtimes: make(map[core.RuntimeID]map[place[request]]*awaited)},
	}

	t.reads.rechecks = newRechecks(func(runtime core.RuntimeID, r request) {
		if !t.stopped() {
			t.addChange(runtime, r)
		}
	})
	return t
}

// addChange enqueues a request for a change. If the queue has priorities, those of a loud runtime
// wait as requests of a list do. They may be of many objects, and those of others come first.
// AddChange returns false if too many of them wait, so that this one keeps its low priority.
func (t *target[request]) addChange(runtime core.RuntimeID, r request) (hasRoom bool) {
	if t.ranked != nil && t.countChange(runtime) {
		return t.addListed(runtime, r)
	}
	t.queue.Add(r)
	return true
}

// addLow enqueues requests with a low priority after a wait. The queue must have priorities.
func (t *target[request]) addLow(wait time.Duration, requests ...request) {
	t.ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority), After: wait}, requests...)
}

// countChange counts a change of this second, and reports whether the runtime is loud.
func (t *target[request]) countChange(runtime core.RuntimeID) (isLoud bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if now := time.Now(); now.Sub(t.second) >= time.Second {
		t.second = now
		t.changes = make(map[core.RuntimeID]int)
	}
	t.changes[runtime]++
	return t.changes[runtime] > perSecond
}

// addResync enqueues a request after a wait. Its priority is low if the queue has priorities. The
// queue does not age, so a loud runtime would delay the request for ever. After another
// resyncWait, the request gets the priority of a change.
func (t *target[request]) addResync(r request, wait time.Duration) {
	if t.ranked == nil {
		t.queue.AddAfter(r, wait)
		return
	}

	t.addLow(wait, r)
	now := time.Now()
	begin := now.Add(wait)
	end := begin.Add(resyncWait)
	t.mu.Lock()
	defer t.mu.Unlock()

	earlier := t.raised[r]
	if earlier == nil || end.Before(earlier.end) {
		t.raiseAfter(r, &raise{begin: begin, end: end})
		return
	}
	earlier.newest = now
}

// addListed enqueues requests of a list, or of a loud runtime. Their priority is low if the queue
// has priorities. After resyncWait, one of the list and one of each loud runtime get the priority
// of a change, for each listedPace. AddListed returns false if a loud runtime has too many that
// wait, so that some keep their low priority. A list has no more than its caller lets wait.
func (t *target[request]) addListed(of core.RuntimeID, requests ...request) (hasRoom bool) {
	if t.ranked == nil {
		for _, r := range requests {
			t.queue.Add(r)
		}
		return true
	}

	t.addLow(0, requests...)
	t.mu.Lock()
	defer t.mu.Unlock()

	now := time.Now()
	hasRoom = true
	for _, r := range requests {
		earlier := t.raised[r]
		end := now.Add(resyncWait + t.paceOf(of))
		switch {
		case earlier != nil && !end.Before(earlier.end): // The poll of a runtime has a later end.
			earlier.newest = now
		case of != "" && t.waiting[of] >= mostRaised:
			hasRoom = false
		default:
			t.raisePaced(of, r, resyncWait, now)
		}
	}
	return hasRoom
}

// raisePaced makes a request wait for those of the same list or loud runtime, too. The caller must
// hold the lock.
func (t *target[request]) raisePaced(of core.RuntimeID, r request, wait time.Duration, now time.Time) {
	end := now.Add(wait + t.paceOf(of))
	t.waiting[of]++
	t.raiseAfter(r, &raise{begin: now, end: end, of: of, isPaced: true})
}

// paceOf returns how long the next request of a list or of a loud runtime waits for the others. The
// caller must hold the lock.
func (t *target[request]) paceOf(of core.RuntimeID) time.Duration {
	return time.Duration(t.waiting[of]) * listedPace
}

// raiseAfter adds a request again at the end of its wait, unless the queue was empty before. The
// caller must hold the lock. A queue does not report whether a request is in it. Under load a
// request that was reconciled without [Source.Client] is therefore reconciled once more.
func (t *target[request]) raiseAfter(r request, at *raise) {
	t.endRaise(r)
	t.raised[r] = at
	at.newest = at.begin
	at.timer = time.AfterFunc(time.Until(at.end), func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		switch {
		case t.raised[r] != at:
		case t.ranked.NumRequeues(r) > 0: // A queue does not count a request in its backoff.
			t.endRaise(r)
			t.raisePriority(r)
		case t.stopped() || t.queue.Len() == 0:
			for other, raised := range t.raised {
				if at.end.Sub(raised.begin) >= time.Second { // A queue counts a request a moment after its wait.
					t.endRaise(other)
					t.followFailure(other, raised, 0)
				}
			}
		default:
			t.endRaise(r)
			t.raisePriority(r)
		}
	})
}

// endRaise makes a request wait for a higher priority no longer. The caller must hold the lock.
func (t *target[request]) endRaise(r request) {
	at := t.raised[r]
	if at == nil {
		return
	}

	at.timer.Stop()
	delete(t.raised, r)
	if !at.isPaced {
		return
	}

	t.waiting[at.of]--
	if t.waiting[at.of] == 0 {
		delete(t.waiting, at.of)
	}
}

// noteBegin notes that a request is being reconciled, so that the request needs no higher priority,
// unless the reconcile fails. A request that came a moment ago may be in the queue again.
func (t *target[request]) noteBegin(runtime core.RuntimeID, r request) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.open.removeRequest(runtime, r)
	if at := t.raised[r]; at != nil && time.Since(at.newest) >= listedPace {
		t.endRaise(r)
		t.followFailure(r, at, t.ranked.NumRequeues(r))
	}
}

func (t *target[request]) stopped() bool { return closed(t.done) || t.queue.ShuttingDown() }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func errStopped() error { return fmt.Errorf("%w: the controller has stopped", core.ErrNotReady) }
