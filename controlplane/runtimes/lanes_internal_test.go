package runtimes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
)

type testQueue = priorityqueue.PriorityQueue[reconcile.Request]

// newQueue is the queue of a controller that runs.
func newQueue(t *testing.T, l *remote.Lane[reconcile.Request]) testQueue {
	t.Helper()

	q := priorityqueue.New[reconcile.Request](t.Name())
	t.Cleanup(q.ShutDown)
	check(t, l.Start(t.Context(), q))

	return q
}

func newObject(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: name}}
}

// outOfReach connects to a runtime without a network.
func outOfReach(context.Context, client.Object) (client.Client, error) {
	return nil, errors.New("out of reach")
}

func requestOf(object client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)}
}

// A runtime that cannot be reached costs workers of its own, whatever asks for it.
func TestARuntimeThatFailsTakesNoWorkerFromTheOthers(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	reached := false
	attempts := 0
	r := newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) {
		attempts++
		if reached {
			return nil, ErrGone
		}

		return nil, errors.New("no route")
	})

	r.certificates = ready{}
	r.opts.Retry = time.Nanosecond
	regular := newQueue(t, r.lanes.Regular)
	failing := newQueue(t, r.lanes.Slow)

	if _, err := r.lanes.Regular.Reconcile(t.Context(), requestOf(object)); !errors.Is(err, reconcile.TerminalError(nil)) {
		t.Errorf("got %v, want an error that enqueues nothing", err)
	}

	result, err := r.lanes.Regular.Reconcile(t.Context(), requestOf(object))
	if err != nil || result.RequeueAfter != 0 || attempts != 1 {
		t.Errorf("got %+v, %v, after %d attempts, want it left to the other lane", result, err, attempts)
	}

	next, _ := failing.Get()
	if _, err := r.lanes.Slow.Reconcile(t.Context(), next); err == nil || attempts != 2 {
		t.Errorf("%d attempts, %v", attempts, err)
	}

	failing.Done(next)
	reached = true
	next, _ = failing.Get()
	if _, err := r.lanes.Slow.Reconcile(t.Context(), next); err != nil {
		t.Error(err)
	}

	if next, _ := regular.Get(); next != requestOf(object) {
		t.Errorf("%v is back, want the runtime", next)
	}
	if r.book.objects[client.ObjectKeyFromObject(object)].fails {
		t.Error("it is still in the other lane")
	}
}

func TestAChangedWatcherPutsNobodyBeforeANewRuntime(t *testing.T) {
	t.Parallel()

	r := newReconciler(t, newPlane(t), nil)
	for n := range 1000 {
		r.book.addObject(client.ObjectKey{Name: fmt.Sprint("old-", n)}, "old")
	}

	regular := newQueue(t, r.lanes.Regular)
	newcomer := requestOf(newObject("new"))
	r.fanOut().Update(t.Context(), event.UpdateEvent{}, regular)
	regular.Add(newcomer)

	if next, _ := regular.Get(); next != newcomer {
		t.Errorf("first is %v, want the new one", next)
	}

	for range 1000 {
		next, _ := regular.Get()
		regular.Done(next)
	}
}

// A Watcher changes after the first reconcile of a runtime has read the Watchers.
func TestAChangedWatcherReachesARuntimeThatIsNew(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	plane := newPlane(t, object)
	r := newReconciler(t, plane, nil)
	r.certificates = &asked{}
	r.watchers = interceptor.NewClient(plane, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if have := r.book.allRequests(); !slices.Equal(have, []reconcile.Request{requestOf(object)}) {
				t.Errorf("a change would reach %v, want the runtime", have)
			}
			return c.List(ctx, list, opts...)
		},
	})
	check(t, reconcileOnce(t, r, object))
}

// Both lanes may have a runtime for a moment.
func TestARuntimeHasOneWorkerAtATime(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	r := newReconciler(t, newPlane(t, object), nil)
	r.connect = func(context.Context, client.Object) (client.Client, error) {
		if result, err := r.lanes.Slow.Reconcile(t.Context(), requestOf(object)); err != nil || result != (reconcile.Result{}) {
			t.Errorf("got %+v, %v, want it to wait", result, err)
		}
		return nil, ErrGone
	}

	r.certificates = ready{}
	regular := newQueue(t, r.lanes.Regular)
	check(t, reconcileOnce(t, r, object))
	if next, _ := regular.Get(); next != requestOf(object) {
		t.Errorf("%v is next, want the runtime again", next)
	}
}

func TestPausesGrowFromRetryToInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reconciler{opts: Options{}.withDefaults(), book: (&Overview{}).newBook()}
		r.book.addObject(prodKey, prod)
		attempts := 0

		for begun := time.Now(); time.Since(begun) < 24*time.Hour; attempts++ {
			after := r.retryAfter(r.book.beginWaiting(prodKey))
			if after < 3*time.Second || after > 10*time.Minute {
				t.Fatalf("pause of %v", after)
			}

			time.Sleep(after)
		}

		// Without a limit 28,800, with the longest pause from the beginning 144.
		if attempts < 144 || attempts > 200 {
			t.Errorf("%d attempts in a day", attempts)
		}

		r.book.noteStatus(prodKey, prod, installation.Status{State: installation.Ready}, contents{})
		if after := r.retryAfter(r.book.beginWaiting(prodKey)); after != 3*time.Second {
			t.Errorf("pause of %v after it was ready", after)
		}
	})
}

func TestAnObjectMayOptOut(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	object.Labels = map[string]string{names.Names{}.Key(labelSkip): "true"}
	r := newReconciler(t, newPlane(t, object), nil)
	reports := observeReports(r)

	if result, err := r.lanes.Regular.Reconcile(t.Context(), requestOf(object)); err != nil || result.RequeueAfter != 0 {
		t.Errorf("got %+v, %v", result, err)
	}
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil ||
		len(object.Finalizers) > 0 {
		t.Errorf("the object is changed: %v, %v", object.Finalizers, err)
	}
	if last := reports.last(); last.State != installation.Progressing || last.Reason != "Skipped" {
		t.Errorf("reported %+v", last)
	}

	setSkip(t, r, object, false)
	r.certificates = &asked{}
	check(t, reconcileOnce(t, r, object))
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil ||
		!slices.Equal(object.Finalizers, []string{names.Names{}.WithDefaults().Finalizer}) {
		t.Errorf("without the label it has the finalizers %v, %v", object.Finalizers, err)
	}
}
