// Module is the manager of the module keda in config/samples. It is a small operator in the shape
// that managers of modules have: a custom resource with a finalizer and status conditions, leader
// election, and rights of its own. The definition, the manager and the rights are objects of the
// module.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	namespace = "keda"
	// finalizer holds a Keda until its ConfigMap is gone. Without its manager it never ends.
	finalizer = "keda.example.com/finalizer"
)

func main() {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil)))
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "keda-manager:", err)
		os.Exit(1)
	}
}

// run blocks until ctx ends. KUBECONFIG, or the pod, names the runtime.
func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElection: true, LeaderElectionID: "keda-manager", LeaderElectionNamespace: namespace,
		LeaderElectionReleaseOnCancel: true, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}

	if err := ctrl.NewControllerManagedBy(mgr).For(newKeda()).Complete(&reconciler{mgr.GetClient()}); err != nil {
		return err
	}

	return mgr.Start(ctx)
}

func newKeda() *unstructured.Unstructured {
	keda := &unstructured.Unstructured{}
	keda.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.example.com", Version: "v1", Kind: "Keda"})
	return keda
}

// reconciler gives each Keda a ConfigMap of the same name with its settings.
type reconciler struct{ client.Client }

// Reconcile implements [reconcile.Reconciler].
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	keda := newKeda()
	if err := r.Get(ctx, request.NamespacedName, keda); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}

	settings := &corev1.ConfigMap{}
	settings.Namespace = keda.GetNamespace()
	settings.Name = keda.GetName()
	if keda.GetDeletionTimestamp() != nil {
		if err := client.IgnoreNotFound(r.Delete(ctx, settings)); err != nil {
			return ctrl.Result{}, err
		}
		controllerutil.RemoveFinalizer(keda, finalizer)
		return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, keda))
	}
	if controllerutil.AddFinalizer(keda, finalizer) {
		return ctrl.Result{}, r.Update(ctx, keda) // The update starts the next reconcile.
	}

	level, _, _ := unstructured.NestedString(keda.Object, "spec", "logLevel")
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, settings, func() error {
		settings.Data = map[string]string{"logLevel": level}
		return nil
	})
	if err != nil {
		return ctrl.Result{}, err
	}

	return ctrl.Result{}, r.reportReady(ctx, keda)
}

// reportReady writes the condition Ready, if the status is about another generation.
func (r *reconciler) reportReady(ctx context.Context, keda *unstructured.Unstructured) error {
	observed, _, _ := unstructured.NestedInt64(keda.Object, "status", "observedGeneration")
	if observed == keda.GetGeneration() {
		return nil
	}

	keda.Object["status"] = map[string]any{
		"observedGeneration": keda.GetGeneration(), "state": "Ready",
		"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Configured", "message": "the settings are written",
			"lastTransitionTime": "2026-01-01T00:00:00Z",
		}},
	}
	return r.Status().Update(ctx, keda)
}
