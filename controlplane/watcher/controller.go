package watcher

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Reconcile applies the route of one Watcher and reports the result in its status.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	w := &v1beta2.Watcher{}
	if err := r.client.Get(ctx, request.NamespacedName, w); err != nil {
		if client.IgnoreNotFound(err) == nil {
			err = r.removeAll(ctx, request.NamespacedName)
		}
		return reconcile.Result{}, err
	}

	if err := r.removeFormer(ctx, w); err != nil {
		return reconcile.Result{}, err
	}

	ends := !w.DeletionTimestamp.IsZero() // Finalizers of others may still hold it.
	if ends {
		if err := r.removeRoutes(ctx, identityOf(w), ""); err != nil {
			return reconcile.Result{}, err
		}
	}

	if err := r.removeFinalizer(ctx, w); err != nil || ends {
		return reconcile.Result{}, err
	}

	result, err := r.establishRoute(ctx, w)
	var again error
	if err != nil {
		result, again = failed(err)
	}

	err = r.reportStatus(ctx, w, result)
	if apierrors.IsConflict(err) { // The cache has not seen the last write of the status yet.
		return reconcile.Result{RequeueAfter: conflictPause}, again
	}
	if err := errors.Join(err, again); err != nil {
		return reconcile.Result{}, err
	}
	if r.opts.Installed == nil {
		return reconcile.Result{}, nil
	}

	return reconcile.Result{RequeueAfter: countInterval}, nil
}

// formerFinalizer is the word of the finalizer on every Watcher of a controller that this one
// replaces.
const formerFinalizer = "watcher"

// removeFinalizer is safe, as routes have an owner reference.
func (r *reconciler) removeFinalizer(ctx context.Context, w *v1beta2.Watcher) error {
	before := w.DeepCopy()
	former := r.opts.Names.Key(formerFinalizer)
	if !controllerutil.RemoveFinalizer(w, former) {
		return nil
	}

	// A patch replaces the whole list, so it must not overwrite a concurrent change.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.client.Patch(ctx, w, patch)); err != nil {
		return fmt.Errorf("remove the finalizer %s: %w", former, err)
	}
	return nil
}

// establishRoute keeps the former route while a new one cannot be made, as it may still work.
func (r *reconciler) establishRoute(ctx context.Context, w *v1beta2.Watcher) (outcome, error) {
	manager, err := managerOf(w, r.opts.Names)
	if err != nil {
		return outcome{}, err
	}

	_, dropped, err := watchOf(w, r.opts.Names)
	if err != nil {
		return outcome{}, problem(v1beta2.ReasonWatchInvalid, "%v", err)
	}
	if err := r.removeRoutes(ctx, identityOf(w), r.routeKind()); err != nil {
		return outcome{}, err
	}

	result, err := r.applyRoute(ctx, w, manager)
	if err != nil {
		return outcome{}, err
	}

	// The runtimes watch without the invalid condition, so events arrive, and too many.
	if dropped != nil {
		result.state = v1beta2.StateWarning
		result.reason = v1beta2.ReasonConditionInvalid
		result.message = dropped.Error()
	}

	return result, nil
}

func (r *reconciler) applyRoute(ctx context.Context, w *v1beta2.Watcher, manager core.Manager) (outcome, error) {
	if r.routing == nil {
		return outcome{v1beta2.StateReady, metav1.ConditionTrue, v1beta2.ReasonRouteNotNeeded, "routes are turned off"}, nil
	}
	if err := incomplete(w); err != nil {
		return outcome{}, err
	}

	// A Watcher may be older than the rules of its definition.
	if port := w.Spec.ServiceInfo.Port; port < 1 || port > maxPort {
		return outcome{}, problem(v1beta2.ReasonWatchInvalid, "spec.serviceInfo.port: want 1 to %d, have %d", maxPort, port)
	}
	if err := r.yieldToElder(ctx, w, manager); err != nil {
		return outcome{}, err
	}

	selector, err := selectorOf(&w.Spec.Gateway.LabelSelector)
	if err != nil {
		return outcome{}, err
	}

	route, where, err := r.routing.buildRoute(ctx, r.gateways, selector, w, manager)
	if err != nil {
		return outcome{}, err
	}
	if err := r.writeRoute(ctx, w, route); err != nil {
		return outcome{}, err
	}

	// A cache may still have the former route, with the former conditions.
	if err := r.routing.checkRoute(ctx, r.fresh, client.ObjectKeyFromObject(w)); err != nil {
		return outcome{}, err
	}

	return outcome{
		v1beta2.StateReady, metav1.ConditionTrue, v1beta2.ReasonRouteApplied,
		fmt.Sprintf("%s leads %s from %s", r.routing.kind(), strings.Join(prefixes(manager), ", "), where),
	}, nil
}
