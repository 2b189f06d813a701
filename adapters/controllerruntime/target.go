package controllerruntime

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// resyncWait is the longest time for which changes delay a request of a resync. It bounds the work
// that a resync of the whole fleet takes from changes, too.
const resyncWait = 5 * time.Second

// target is the queue of a controller while it runs.
type target[request comparable] struct {
	done  <-chan struct{}
	queue workqueue.TypedRateLimitingInterface[request]
	reads reads[request]

	mu sync.Mutex
	// raised has the requests of resyncs that get the priority of a change at the end of their
	// wait.
	raised map[request]bool
}

func newTarget[request comparable](
	done <-chan struct{}, queue workqueue.TypedRateLimitingInterface[request],
) *target[request] {
	return &target[request]{
		done: done, queue: queue, raised: make(map[request]bool),
		reads: reads[request]{scopes: make(map[scope[request]]map[types.UID]*awaited)},
	}
}

// addResync enqueues a request after a wait. Its priority is low if the queue has priorities. The
// queue does not age, so a loud runtime would delay the request for ever. After another
// resyncWait, the request gets the priority of a change.
func (t *target[request]) addResync(r request, wait time.Duration) {
	ranked, ok := t.queue.(priorityqueue.PriorityQueue[request])
	if !ok {
		t.queue.AddAfter(r, wait)
		return
	}
	ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority), After: wait}, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.raised[r] {
		t.raised[r] = true
		time.AfterFunc(wait+resyncWait, func() { t.raise(r) })
	}
}

// raise adds a request again, unless nothing waits. A queue does not report whether a request is in
// it. Under load a request that was reconciled is therefore reconciled once more.
func (t *target[request]) raise(r request) {
	t.mu.Lock()
	delete(t.raised, r)
	t.mu.Unlock()
	if !t.stopped() && t.queue.Len() > 0 {
		t.queue.Add(r)
	}
}

// stopped reports whether the controller has stopped, or its queue is closed.
func (t *target[request]) stopped() bool { return closed(t.done) || t.queue.ShuttingDown() }

// closed reports whether a channel is closed. It does not block.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// errStopped is returned for deliveries after the end of a controller.
func errStopped() error { return fmt.Errorf("%w: the controller has stopped", core.ErrNotReady) }
