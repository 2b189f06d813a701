package runtimes

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// busyPause is the time after which a runtime that both lanes want is tried again.
const busyPause = time.Second

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// lane is the queue of a controller. The failing lane has the runtimes with a failed last
// reconcile, so that they take no worker from the others. The regular lane has all others.
type lane struct {
	mu    sync.Mutex
	queue queue // nil until the controller runs
}

// source starts nothing. It keeps the queue of its controller.
func (l *lane) source() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue = q
		return nil
	})
}

// add reports whether the request is in the queue.
func (l *lane) add(request reconcile.Request, after time.Duration, priority int) bool {
	l.mu.Lock()
	q := l.queue
	l.mu.Unlock()
	if q == nil {
		return false
	}
	enqueue(q, after, priority, request)
	return true
}

func enqueue(q queue, after time.Duration, priority int, requests ...reconcile.Request) {
	if prioritised, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		prioritised.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: &priority}, requests...)
		return
	}
	for _, request := range requests {
		q.AddAfter(request, after)
	}
}

// Reconcile does the next steps for one runtime. It leaves runtimes that fail to the other lane.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if r.failures.fails(request.NamespacedName) && r.failing.add(request, 0, 0) {
		return reconcile.Result{}, nil
	}
	return r.visit(ctx, request)
}

// retry is the reconcile of the failing lane. A runtime that does not fail any more goes back.
func (r *reconciler) retry(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.visit(ctx, request)
	if err == nil && result.RequeueAfter > 0 && r.regular.add(request, result.RequeueAfter, handler.LowPriority) {
		return reconcile.Result{}, nil
	}
	return result, err
}

// divert adds a runtime that fails to the failing lane. Those that fail for long come last.
func (r *reconciler) divert(request reconcile.Request, err error) bool {
	if !isFailure(err) || errors.Is(err, reconcile.TerminalError(nil)) {
		if err == nil {
			r.failures.note(request.NamespacedName, false)
		}
		return false
	}
	after, age := r.failures.pause(request.NamespacedName, r.opts.Retry, r.opts.Interval)
	if !r.failing.add(request, spread(after), -int(age.Minutes())) {
		return false
	}
	r.failures.note(request.NamespacedName, true)
	return true
}

// visit reconciles a runtime, unless the other lane does. One that fails goes to the failing lane.
func (r *reconciler) visit(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if _, busy := r.busy.LoadOrStore(request.NamespacedName, true); busy {
		return reconcile.Result{RequeueAfter: busyPause}, nil
	}
	defer r.busy.Delete(request.NamespacedName)
	result, err := r.reconcile(ctx, request)
	if r.divert(request, err) {
		err = reconcile.TerminalError(err) // Logged and counted, and not enqueued here.
	}
	return result, err
}

// fanOut enqueues all runtimes after a change that concerns all, behind those that changed
// themselves.
func (r *reconciler) fanOut() handler.EventHandler {
	all := func(ctx context.Context, q queue) { enqueue(q, 0, handler.LowPriority, r.all(ctx)...) }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { all(ctx, q) },
		UpdateFunc: func(ctx context.Context, _ event.UpdateEvent, q queue) { all(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { all(ctx, q) },
	}
}
