package runtimes

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// Certificates is the port to the issuer. Its methods may be called concurrently and do not wait
// for certificates. A Certificates may also be a [ServiceChecker].
type Certificates interface {
	// Reconcile maintains the CA and the certificate of the listener.
	Reconcile(ctx context.Context) (certificates.Status, error)
	// EnsureRuntime returns the material of a runtime. An error has the reason runtime_taken if the
	// runtime has another owner.
	EnsureRuntime(ctx context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error)
	// OwnsRuntime reports whether the certificates of a runtime belong to its owner. It returns
	// true for a runtime without certificates.
	OwnsRuntime(ctx context.Context, r certificates.Runtime) (bool, error)
	// RemoveRuntime removes the certificates of a runtime, unless they belong to another owner.
	RemoveRuntime(ctx context.Context, r certificates.Runtime) error
}

// ServiceChecker is an optional interface of [Certificates]. If the certificates are not valid for
// the Service of the agent, [SetUp] fails with its error.
type ServiceChecker interface {
	CheckService(service types.NamespacedName) error
}

var (
	_ Certificates   = (*certificates.Certificates)(nil)
	_ ServiceChecker = (*certificates.Certificates)(nil)
)

// followed is for an issuer with objects that can be followed.
type followed interface {
	Follow(ctx context.Context, watching client.WithWatch, changed func(owner types.NamespacedName))
	Version(r certificates.Runtime) string
}

var _ followed = (*certificates.Certificates)(nil)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// defaultRetry is the default of [Options.Retry].
const defaultRetry = 3 * time.Second

// longestBackoff is for a CA that cannot be reconciled, for example without cert-manager.
const longestBackoff = 5 * time.Minute

// KeepCertificates returns a Runnable for a manager that reconciles the CA and the certificate of
// the listener as often as their status requires. After errors, it waits for 3 s to 5 min, with a
// backoff that doubles. It has the metrics of a controller named "certificates", needs leader
// election, and ends with its context.
//
// KeepCertificates is for an operator that publishes certificates and does not install agents yet.
// [SetUp] includes it.
func KeepCertificates(issuer Certificates) manager.Runnable {
	return keepReconciled("certificates", issuer, defaultRetry, func(certificates.Status) {}, &wakeup{})
}

// wakeup enqueues the only request of a controller, which starts with it.
type wakeup struct {
	mu    sync.Mutex
	queue queue // nil until the controller runs
}

// newSource enqueues the first request.
func (w *wakeup) newSource() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.queue = q
		q.Add(reconcile.Request{})
		return nil
	})
}

// request asks for a reconcile. It does nothing before the controller runs.
func (w *wakeup) request() {
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

		if err := c.Watch(requests.newSource()); err != nil {
			return err
		}

		return c.Start(ctx)
	})
}
