package multicluster

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

func TestListsWaitForALongQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := workqueue.DefaultTypedControllerRateLimiter[mcreconcile.Request]()
		o := &objects{queue: workqueue.NewTypedRateLimitingQueue(limiter)}
		defer o.queue.ShutDown()

		for name := range 1001 {
			if !o.takeTurn() {
				t.Fatalf("with %d requests in the queue, a list waits", name)
			}

			r := mcreconcile.Request{}
			r.Namespace = string(rune('a' + name))
			o.queue.Add(r)
		}

		for range 3 {
			if o.takeTurn() {
				t.Error("a list does not wait for 1,001 requests")
			}

			time.Sleep(time.Second)
			if !o.takeTurn() {
				t.Error("no list in a second")
			}
		}
	})
}
