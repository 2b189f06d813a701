package runtimes

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// KubeconfigSecrets are the Secrets with kubeconfigs: those in Namespace with Label. The value of
// the label is the name of the object that represents the runtime, in the same namespace. The
// operator needs the right to list and watch Secrets there.
type KubeconfigSecrets struct{ Namespace, Label string }

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

// version begins with the name of the object that a Secret names.
func (s KubeconfigSecrets) version(secret *metav1.PartialObjectMetadata) string {
	return s.Namespace + "/" + secret.GetLabels()[s.Label] + " " + follow.ResourceVersion(secret)
}

// changed enqueues the object of a runtime. The zero name stands for the CA.
func (r *reconciler) changed(object types.NamespacedName) {
	if object == (types.NamespacedName{}) {
		r.authority.add(reconcile.Request{}, 0, 0)
		return
	}
	r.regular.add(reconcile.Request{NamespacedName: object}, 0, handler.LowPriority)
}
