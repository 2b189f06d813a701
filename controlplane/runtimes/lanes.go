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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// slowReconcile is the duration of a reconcile above which a runtime belongs to the failing lane,
// even if nothing has failed.
const slowReconcile = 20 * time.Second

// newLanes makes two lanes. The failing lane (Slow) has the runtimes with a failed or slow last
// reconcile, so that they take no worker and no memory from the others. The regular lane has all
// others.
func (r *reconciler) newLanes() *remote.Lanes[reconcile.Request] {
	cluster := func(request reconcile.Request) string { return request.String() }
	return remote.NewLanes(cluster, reconcile.Func(r.reconcile), remote.LanesOptions[reconcile.Request]{
		Share: 1, Timeout: 2 * r.opts.Timeout, Judge: r.judge, SlowWorkers: r.opts.Concurrent,
	})
}

// judge moves a runtime that fails to the failing lane. Those that fail for long come last there.
func (r *reconciler) judge(request reconcile.Request, took time.Duration, err error, slow bool) remote.Verdict {
	if err == nil {
		r.book.edit(request.NamespacedName, func(e *entry) { e.fails = false })
		return remote.Verdict{Slow: took >= slowReconcile}
	}
	if !isFailure(err) || errors.Is(err, reconcile.TerminalError(nil)) {
		return remote.Verdict{Slow: slow}
	}
	r.book.edit(request.NamespacedName, func(e *entry) { e.fails = true })
	after, age := r.waits(request.NamespacedName)
	return remote.Verdict{Slow: true, Retry: true, After: spread(after), Priority: -int(age.Minutes())}
}

// reconcileAll enqueues all runtimes after a change that concerns all, behind those that changed
// themselves. Those of a controller that does not run yet are enqueued when it starts.
func (r *reconciler) reconcileAll() {
	r.lanes.Regular.Add(0, handler.LowPriority, r.book.requests()...)
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
	return keepReconciled("certificates", issuer, defaultRetry, func(certificates.Status) {}, &wakeup{})
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

// wakeup enqueues the only request of a controller, which starts with it.
type wakeup struct {
	mu    sync.Mutex
	queue queue // nil until the controller runs
}

func (w *wakeup) source() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.queue = q
		q.Add(reconcile.Request{})
		return nil
	})
}

func (w *wakeup) add() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(reconcile.Request{})
	}
}

// keepReconciled calls note with each status, unless Reconcile fails.
func keepReconciled(
	name string, issuer Certificates, retry time.Duration,
	note func(certificates.Status), requests *wakeup,
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
		if err := c.Watch(requests.source()); err != nil {
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
				follow.New(corev1.SchemeGroupVersion.WithKind("Secret"), versionIn(where)).Run(ctx, watching,
					follow.Owned(r.changed), client.InNamespace(where.Namespace), client.HasLabels{where.Label})
			})
		}
		tasks.Wait()
		return nil
	}), err
}

func (r *reconciler) changed(object types.NamespacedName) {
	if object == (types.NamespacedName{}) {
		r.authority.add()
		return
	}
	r.lanes.Regular.Add(0, handler.LowPriority, reconcile.Request{NamespacedName: object})
}
