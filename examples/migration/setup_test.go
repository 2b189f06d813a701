package migration

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// settings are those of the operator of lifecycle-manager that this package needs.
type settings struct {
	ListenerAddr string
	dry          bool
}

// setUpWithManager is the function of an operator as docs/platforms/migration.md changes it. TestGuide holds that
// each added line of the guide is here.
func setUpWithManager(ctx context.Context, mgr ctrl.Manager, settings settings, r reconcile.Reconciler) error {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(today.WatcherKind().GroupVersion().WithKind("Kyma"))

	hooks, metricsErr := Metrics()
	received, err := Events(ctx, mgr, settings.ListenerAddr, settings.dry, keys.FilesOptions{},
		controllerruntime.ComponentOptions{Listener: listener.Options{Hooks: hooks}})
	if err := errors.Join(metricsErr, err); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(kyma).
		WatchesRawSource(received).
		Complete(r)
}

// formerWatcher is the Go type of another module for the kind Watcher, as lifecycle-manager has one.
type formerWatcher struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject implements [runtime.Object].
func (f *formerWatcher) DeepCopyObject() runtime.Object {
	return &formerWatcher{TypeMeta: f.TypeMeta, ObjectMeta: *f.DeepCopy()}
}
