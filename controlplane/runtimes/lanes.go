package runtimes

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// busyPause is the time after which a runtime that both lanes want is tried again.
const busyPause = time.Second

type (
	queue   = workqueue.TypedRateLimitingInterface[reconcile.Request]
	ordered = priorityqueue.PriorityQueue[reconcile.Request]
)

// lane is the queue of a controller. The failing lane has the runtimes with a failed last
// reconcile, so that they take no worker from the others. The regular lane has all others.
type lane struct {
	mu    sync.Mutex
	queue ordered // nil until the controller runs
}

func (l *lane) source(first ...reconcile.Request) source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.queue, _ = q.(ordered)
		for _, request := range first {
			q.Add(request)
		}
		return nil
	})
}

func (l *lane) add(after time.Duration, priority int, requests ...reconcile.Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return false
	}
	l.queue.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: &priority}, requests...)
	return true
}

// Reconcile does the next steps for one runtime. It leaves runtimes that fail to the other lane.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	fails := false
	r.book.edit(request.NamespacedName, func(e *entry) { fails = e.fails })
	if fails && r.failing.add(0, 0, request) {
		return reconcile.Result{}, nil
	}
	return r.visit(ctx, request)
}

// retry is the reconcile of the failing lane. A runtime that does not fail any more goes back.
func (r *reconciler) retry(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.visit(ctx, request)
	if err == nil && result.RequeueAfter > 0 && r.regular.add(result.RequeueAfter, handler.LowPriority, request) {
		return reconcile.Result{}, nil
	}
	return result, err
}

// divert adds a runtime that fails to the failing lane. Those that fail for long come last.
func (r *reconciler) divert(request reconcile.Request, err error) bool {
	if !isFailure(err) || errors.Is(err, reconcile.TerminalError(nil)) {
		if err == nil {
			r.book.edit(request.NamespacedName, func(e *entry) { e.fails = false })
		}
		return false
	}
	after, age := r.waits(request.NamespacedName)
	if !r.failing.add(spread(after), -int(age.Minutes()), request) {
		return false
	}
	r.book.edit(request.NamespacedName, func(e *entry) { e.fails = true })
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

// reconcileAll enqueues all runtimes after a change that concerns all, behind those that changed
// themselves. Those of a controller that does not run yet are enqueued when it starts.
func (r *reconciler) reconcileAll() {
	r.regular.add(0, handler.LowPriority, r.book.requests()...)
}

func (r *reconciler) fanOut() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, queue) { r.reconcileAll() },
		UpdateFunc: func(context.Context, event.UpdateEvent, queue) { r.reconcileAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { r.reconcileAll() },
	}
}

// longestBackoff is for a CA that cannot be reconciled, as without cert-manager.
const longestBackoff = 5 * time.Minute

// KeepCertificates returns a part of a manager that reconciles the CA and the certificate of the
// listener, as often as their status demands. After errors it waits for 3 s to 5 min, twice as long
// each time. It has the metrics of a controller named "certificates", needs leader election, and
// ends with its context.
//
// It is for an operator that publishes certificates and installs no agents yet. [SetUp] includes
// it.
func KeepCertificates(issuer Certificates) manager.Runnable {
	return keepReconciled("certificates", issuer, defaultRetry, func(certificates.Status) {}, &lane{})
}

// keepAuthority reconciles all runtimes once when a rotation begins to wait for them.
func (r *reconciler) keepAuthority(reconcileAll func()) manager.Runnable {
	confirming := false
	note := func(status certificates.Status) {
		if status.Confirming && !confirming {
			reconcileAll()
		}
		confirming = status.Confirming
		r.opts.Overview.noteAuthority(status)
	}
	return keepReconciled(r.opts.Name+"-certificates", r.certificates, r.opts.Retry, note, &r.authority)
}

// keepReconciled calls note with each status, unless Reconcile fails.
func keepReconciled(
	name string, issuer Certificates, retry time.Duration,
	note func(certificates.Status), requests *lane,
) manager.Runnable {
	reconcileOnce := func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		status, err := issuer.Reconcile(ctx)
		if err != nil {
			return reconcile.Result{}, err
		}
		note(status)
		return reconcile.Result{RequeueAfter: max(status.RequeueAfter, time.Second)}, nil
	}
	return manager.RunnableFunc(func(ctx context.Context) error {
		c, err := controller.NewUnmanaged(name, controller.Options{
			Reconciler: reconcile.Func(reconcileOnce),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				retry, max(retry, longestBackoff)),
			UsePriorityQueue: new(true), SkipNameValidation: new(true), // A process may have several CAs.
		})
		if err != nil {
			return err
		}
		if err := c.Watch(requests.source(reconcile.Request{})); err != nil {
			return err
		}
		return c.Start(ctx)
	})
}

// followed is for an issuer with objects that can be followed.
type followed interface {
	Follow(ctx context.Context, watching client.WithWatch, changed func(owner types.NamespacedName))
	Version(r certificates.Runtime) string
}

var _ followed = (*certificates.Certificates)(nil)

// follow retries without a kind or a right. A change then waits for the next reconcile.
func (r *reconciler) follow(mgr ctrl.Manager) (manager.Runnable, error) {
	watching, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	return manager.RunnableFunc(func(ctx context.Context) error {
		var tasks sync.WaitGroup
		if followed, ok := r.certificates.(followed); ok {
			tasks.Go(func() { followed.Follow(ctx, watching, r.changed) })
		}
		if where := r.opts.Kubeconfigs; where.Label != "" {
			tasks.Go(func() {
				follow.New(corev1.SchemeGroupVersion.WithKind("Secret"), where.version).Run(ctx, watching,
					follow.Owned(r.changed), client.InNamespace(where.Namespace), client.HasLabels{where.Label})
			})
		}
		tasks.Wait()
		return nil
	}), err
}

func (r *reconciler) changed(object types.NamespacedName) {
	if object == (types.NamespacedName{}) {
		r.authority.add(0, 0, reconcile.Request{})
		return
	}
	r.regular.add(0, handler.LowPriority, reconcile.Request{NamespacedName: object})
}
