package controllerruntime

import (
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// target is the queue of a controller while it runs.
type target[request comparable] struct {
	done  <-chan struct{}
	queue workqueue.TypedRateLimitingInterface[request]
}

// addAfter enqueues a request of low priority after a wait.
func (t *target[request]) addAfter(r request, wait time.Duration) {
	if ranked, ok := t.queue.(priorityqueue.PriorityQueue[request]); ok {
		ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority), After: wait}, r)
		return
	}
	t.queue.AddAfter(r, wait)
}

// stopped reports whether the controller has stopped, or its queue is closed.
func (t *target[request]) stopped() bool { return closed(t.done) || t.queue.ShuttingDown() }

// add enqueues a request. Those of a resync get a low priority if the queue has priorities.
func (t *target[request]) add(r request, resync bool) {
	ranked, ok := t.queue.(priorityqueue.PriorityQueue[request])
	if !ok || !resync {
		t.queue.Add(r)
		return
	}
	ranked.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, r)
}

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
