package main

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// newKyma returns an object of the kind that represents a runtime. This operator reads only its
// metadata.
func newKyma() *metav1.PartialObjectMetadata {
	kyma := &metav1.PartialObjectMetadata{}
	kind := schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
	kyma.SetGroupVersionKind(kind)
	return kyma
}

// identify returns the runtime that a Kyma represents.
func identify(_ context.Context, kyma client.Object) (runtimes.Identity, error) {
	domain := kyma.GetAnnotations()[controllerruntime.DomainAnnotation]
	return runtimes.Identity{ID: controllerruntime.ByName(kyma), Domain: domain}, nil
}

// kymas is the reconciler that the operator had before. An event does not carry a change: the
// reconciler reads the state of the runtime, as it does when it polls.
type kymas struct {
	client client.Reader
	fleet  *fleet.Fleet
}

// Reconcile looks at one runtime. Without events, it looks at a fresh runtime seldom and at any
// other runtime often.
func (k *kymas) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kyma := newKyma()
	if err := k.client.Get(ctx, request.NamespacedName, kyma); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	// Your operator does its work here, with its own client for the runtime.
	ctrl.LoggerFrom(ctx).Info("looked at the runtime")
	return ctrl.Result{RequeueAfter: k.fleet.RequeueAfter(controllerruntime.ByName(kyma))}, nil
}
