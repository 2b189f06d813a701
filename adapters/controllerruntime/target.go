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

// perSecond is the number of requests for the changes of one runtime, in one second, that have the
// priority of a change.
const perSecond = 20

// target is the workqueue of the controller that has started a source, with the state that a source
// keeps for it. Each start of a controller gets a new target. mu guards the fields below it, and
// reads, strays and raises have their own locks.
type target[request comparable] struct {
	done  <-chan struct{}
	queue workqueue.TypedRateLimitingInterface[request]
	// ranked is the queue, nil if it has no priorities.
	ranked priorityqueue.PriorityQueue[request]
	reads  reads[request]
	strays strays[request]
	// raises contains the requests with a low priority. It is not used if the queue has no
	// priorities.
	raises raises[request]

	mu sync.Mutex
	// changes counts the requests for the changes of each runtime since second.
	changes map[core.RuntimeID]int
	second  time.Time
	// open contains the requests for changes that may be in the queue.
	open open[request]
	// replacing contains the resyncs that will replace changes.
	replacing map[replaced]struct{}
}

func newTarget[request comparable](
	done <-chan struct{}, queue workqueue.TypedRateLimitingInterface[request],
) *target[request] {
	ranked, _ := queue.(priorityqueue.PriorityQueue[request])
	t := &target[request]{
		done: done, queue: queue, ranked: ranked,
		reads: reads[request]{runtimes: make(map[core.RuntimeID]map[place[request]]*awaited)},
		raises: raises[request]{
			queue: ranked, raised: make(map[request]*raise), waiting: make(map[core.RuntimeID]int),
		},
	}
	t.raises.isStopped = t.isStopped

	t.reads.rechecks = newRechecks(func(runtime core.RuntimeID, r request) {
		if !t.isStopped() {
			t.addChange(runtime, r)
		}
	})
	return t
}

// addChange enqueues a request for a change. If the queue has priorities, the changes of a loud
// runtime wait as requests of a list do. They may concern many objects, and changes of other
// runtimes come first. AddChange returns false if too many of them wait, so that this one keeps its
// low priority.
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
	t.raises.raiseResync(r, wait)
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
	return t.raises.raiseListed(of, requests)
}

// makeRoom reports whether a request for a change may be enqueued.
func (t *target[request]) makeRoom(runtime core.RuntimeID, r request) bool {
	isEmpty := t.queue.Len() == 0
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open.addRequest(runtime, r, isEmpty)
}

// isReplacing reports whether a resync will replace changes that come now.
func (t *target[request]) isReplacing(key replaced) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, waits := t.replacing[key]
	return waits
}

// replaceLater enqueues the requests of a resync after replaceWait. An earlier one could begin
// before further changes that it has to replace. It reports false without room.
func (t *target[request]) replaceLater(key replaced, requests []request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	if len(t.replacing) >= mostReplacing {
		return false
	}
	if t.replacing == nil {
		t.replacing = make(map[replaced]struct{})
	}
	t.replacing[key] = struct{}{}

	time.AfterFunc(replaceWait, func() {
		t.mu.Lock()
		delete(t.replacing, key)
		t.mu.Unlock()
		if t.isStopped() {
			return
		}

		for _, r := range requests {
			t.addResync(r, 0)
		}
	})
	return true
}

// noteBegin notes that a request is being reconciled.
func (t *target[request]) noteBegin(runtime core.RuntimeID, r request) {
	t.mu.Lock()
	t.open.removeRequest(runtime, r)
	t.mu.Unlock()

	t.raises.noteBegin(r)
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

func (t *target[request]) isStopped() bool { return closed(t.done) || t.queue.ShuttingDown() }

func errStopped() error { return fmt.Errorf("%w: the controller has stopped", core.ErrNotReady) }
