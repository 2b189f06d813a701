package runtimes

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// fanOut reconciles all runtimes after a change of a Watcher.
func (r *reconciler) fanOut() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, queue) { r.reconcileAll() },
		UpdateFunc: func(context.Context, event.UpdateEvent, queue) { r.reconcileAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { r.reconcileAll() },
	}
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

// followObjects reconciles a runtime with a new certificate or kubeconfig. Without a kind or a
// right, it retries, and a change waits for the next reconcile.
func (r *reconciler) followObjects(mgr ctrl.Manager) (manager.Runnable, error) {
	watching, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, err
	}

	return manager.RunnableFunc(func(ctx context.Context) error {
		var tasks sync.WaitGroup
		issuer, isFollowed := r.certificates.(followed)
		if isFollowed {
			tasks.Go(func() { issuer.Follow(ctx, watching, r.enqueueChanged) })
		}
		where := r.opts.Kubeconfigs
		if where.Label != "" {
			tasks.Go(func() {
				follow.New(corev1.SchemeGroupVersion.WithKind("Secret"), versionIn(where)).Run(ctx, watching,
					follow.Owned(r.enqueueChanged), client.InNamespace(where.Namespace), client.HasLabels{where.Label})
			})
		}

		tasks.Wait()
		return nil
	}), nil
}

// enqueueChanged takes the object of a runtime, or no name for the CA.
func (r *reconciler) enqueueChanged(object types.NamespacedName) {
	if object == (types.NamespacedName{}) {
		r.authority.request()
		return
	}
	r.lanes.Regular.Add(0, handler.LowPriority, reconcile.Request{NamespacedName: object})
}
