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
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// longestBackoff is the longest time between two attempts while the CA cannot be reconciled, as
// without cert-manager.
const longestBackoff = 5 * time.Minute

// KeepCertificates returns a part of a manager that reconciles the CA and the certificate of the
// listener, as often as their status demands. After errors it waits for 3 s to 5 min, twice as long
// each time. It has the metrics of a controller named "certificates", needs leader election, and
// ends with its context.
//
// It is for an operator that publishes certificates and installs no agents yet. [SetUp] includes
// it.
func KeepCertificates(issuer Certificates) manager.Runnable {
	return keepReconciled("certificates", issuer, defaultRetry, func(context.Context, certificates.Status) {}, &lane{})
}

// keepAuthority reconciles the CA. When a rotation begins to wait for confirmations, it reconciles
// all runtimes once, so that they get the new bundle before their interval ends.
func (r *reconciler) keepAuthority(reconcileAll func(ctx context.Context)) manager.Runnable {
	confirming := false
	note := func(ctx context.Context, status certificates.Status) {
		if status.Confirming && !confirming {
			reconcileAll(ctx)
		}
		confirming = status.Confirming
		r.opts.Overview.edit(func(o *Overview) { o.authority = status })
	}
	return keepReconciled(r.opts.Name+"-certificates", r.certificates, r.opts.Retry, note, &r.authority)
}

// keepReconciled returns a controller of one request. note gets each status, unless Reconcile
// fails.
func keepReconciled(
	name string, issuer Certificates, retry time.Duration,
	note func(context.Context, certificates.Status), requests *lane,
) manager.Runnable {
	reconcileOnce := func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		status, err := issuer.Reconcile(ctx)
		if err != nil {
			return reconcile.Result{}, err
		}
		note(ctx, status)
		return reconcile.Result{RequeueAfter: max(status.RequeueAfter, time.Second)}, nil
	}
	return manager.RunnableFunc(func(ctx context.Context) error {
		c, err := controller.NewUnmanaged(name, controller.Options{
			Reconciler: reconcile.Func(reconcileOnce),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				retry, max(retry, longestBackoff)),
			SkipNameValidation: new(true), // A process may have several CAs.
		})
		if err != nil {
			return err
		}
		once := source.Func(func(_ context.Context, q queue) error {
			q.Add(reconcile.Request{})
			return nil
		})
		if err := errors.Join(c.Watch(requests.source()), c.Watch(once)); err != nil {
			return err
		}
		return c.Start(ctx)
	})
}

// reconcileAll enqueues all runtimes. Those of a controller that does not run yet are enqueued when
// it starts.
func (r *reconciler) reconcileAll(ctx context.Context) {
	for _, request := range r.all(ctx) {
		r.regular.add(request, 0, handler.LowPriority)
	}
}

// followed is a part of [certificates.Certificates], for an issuer with objects that can be
// followed.
type followed interface {
	Follow(ctx context.Context, watching client.WithWatch, changed func(owner types.NamespacedName))
	Version(r certificates.Runtime) string
}

var _ followed = (*certificates.Certificates)(nil)

// follow returns a part of a manager. It reconciles a runtime as soon as its certificates or its
// kubeconfig have changed, and the CA as soon as a rotation is requested. Without a kind or a
// right, it retries, and such a change waits for the next reconcile.
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

// changed enqueues the object of a runtime. The zero name stands for the CA.
func (r *reconciler) changed(object types.NamespacedName) {
	if object == (types.NamespacedName{}) {
		r.authority.add(reconcile.Request{}, 0, 0)
		return
	}
	r.regular.add(reconcile.Request{NamespacedName: object}, 0, handler.LowPriority)
}
