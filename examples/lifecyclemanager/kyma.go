package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// kymas is the operator's own reconciler. An event does not tell it what has changed: it looks at the runtime, as it did when it polled.
type kymas struct {
	client client.Reader
	heard  *fleet.Fleet
}

// Reconcile looks at one runtime. A runtime of which each change would be heard is looked at seldom without an event, any other often.
func (k *kymas) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kyma := newKyma()
	if err := k.client.Get(ctx, request.NamespacedName, kyma); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}

	// Here your operator does what it is there for, with its own client for the runtime.
	ctrl.LoggerFrom(ctx).Info("looked at the runtime")

	return ctrl.Result{RequeueAfter: k.heard.RequeueAfter(controllerruntime.ByName(kyma))}, nil
}
