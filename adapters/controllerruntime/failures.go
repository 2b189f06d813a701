package controllerruntime

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// mostBegun bounds the requests that are followed after their reconcile has begun. Each takes
	// about 100 bytes.
	mostBegun = 1 << 12
	// begunFor is longer than a reconcile takes that waits for a runtime in vain.
	begunFor = 2 * time.Minute
	// longestBackoff is that of the default rate limiter of a controller.
	longestBackoff = 1000 * time.Second
)

// begun are requests with a low priority that a reconcile has begun with. A controller tries a
// request that fails again with the priority that it had, and the queue does not age. The lock of
// the target guards all fields.
type begun[request comparable] struct {
	// requests are in the order of their times.
	requests []begunRequest[request]
	// checking means that a timer of the next check runs.
	checking bool
}

// begunRequest is a request of a reconcile that has begun, and may fail once more.
type begunRequest[request comparable] struct {
	request request
	at      time.Time
	// failures is the number of its failures before. A terminal error adds none.
	failures int
	// of and isPaced are those of its raise.
	of      core.RuntimeID
	isPaced bool
}

// followFailure finds out whether a request fails once more. Without a failure, it needs no higher
// priority than that of was. The caller must hold the lock.
func (t *target[request]) followFailure(r request, was *raise, failures int) {
	b := &t.begun
	now := time.Now()
	if len(b.requests) >= mostBegun {
		t.raiseFailed(b.requests[0], now) // Its reconcile has most likely ended.
		b.requests = b.requests[1:]
	}

	b.requests = append(b.requests, begunRequest[request]{
		request: r, at: now, failures: failures, of: was.of, isPaced: was.isPaced,
	})
	t.checkLater()
}

// checkLater starts the timer of the next check. The caller must hold the lock.
func (t *target[request]) checkLater() {
	if !t.begun.checking {
		t.begun.checking = true
		time.AfterFunc(resyncWait, t.checkBegun)
	}
}

// checkBegun gives the requests that have failed the priority of a change, and forgets old ones.
func (t *target[request]) checkBegun() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.begun.checking = false
	all := t.begun.requests
	t.begun.requests = nil
	if t.stopped() {
		return
	}

	now := time.Now()
	for _, b := range all {
		if !t.raiseFailed(b, now) && now.Sub(b.at) < begunFor {
			t.begun.requests = append(t.begun.requests, b)
		}
	}
	if len(t.begun.requests) > 0 {
		t.checkLater()
	}
}

// raiseFailed reports whether a request has failed, and gives it the priority of a change. Requests
// of a list or of a loud runtime wait for one another again: all of them may fail. The caller must
// hold the lock.
func (t *target[request]) raiseFailed(b begunRequest[request], now time.Time) (failed bool) {
	if t.ranked.NumRequeues(b.request) <= b.failures {
		return false
	}

	hasRoom := b.of == "" || t.waiting[b.of] < mostRaised
	switch {
	case t.raised[b.request] != nil:
	case !b.isPaced:
		t.raisePriority(b.request)
	case hasRoom:
		t.raisePaced(b.of, b.request, 0, now)
	}
	return true
}

// raisePriority gives a request the priority of a change. One that has failed keeps its backoff,
// because a queue takes the earlier of two times.
func (t *target[request]) raisePriority(r request) {
	if t.ranked.NumRequeues(r) > 0 {
		t.ranked.AddWithOpts(priorityqueue.AddOpts{After: longestBackoff}, r)
		return
	}
	t.ranked.Add(r)
}
