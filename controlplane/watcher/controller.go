package watcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	conflictPause = time.Second
	// countInterval is the time between two counts of the runtimes with a Watcher.
	countInterval = 30 * time.Second
)

type reconciler struct {
	client   client.Client
	fresh    client.Reader // without cache
	gateways client.Reader
	events   events.EventRecorder
	routing  routing // nil: no routes
	opts     Options
}

// Reconcile applies the route of one Watcher and reports the result in its status.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	w := &v1beta2.Watcher{}
	if err := r.client.Get(ctx, request.NamespacedName, w); err != nil {
		if client.IgnoreNotFound(err) == nil {
			err = r.removeAll(ctx, request.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	if !w.DeletionTimestamp.IsZero() { // Finalizers of others may still hold it.
		if err := r.removeAll(ctx, request.NamespacedName); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, r.removeFinalizer(ctx, w)
	}
	if err := r.removeFinalizer(ctx, w); err != nil {
		return reconcile.Result{}, err
	}
	result, err := r.establish(ctx, w)
	var again error
	if err != nil {
		result, again = failed(err)
	}
	err = r.report(ctx, w, result)
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

// formerFinalizer is on every Watcher of a controller that this one replaces.
const formerFinalizer = "operator.kyma-project.io/watcher"

// removeFinalizer takes the former finalizer off. Routes have an owner reference, so they need no
// finalizer.
func (r *reconciler) removeFinalizer(ctx context.Context, w *v1beta2.Watcher) error {
	before := w.DeepCopy()
	if !controllerutil.RemoveFinalizer(w, formerFinalizer) {
		return nil
	}
	// A patch replaces the whole list, so it must not overwrite a concurrent change.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(r.client.Patch(ctx, w, patch)); err != nil {
		return fmt.Errorf("remove the finalizer %s: %w", formerFinalizer, err)
	}
	return nil
}

// establish returns the status of a Watcher after it has applied its route. The former route stays
// while a new one cannot be made, as it may still work.
func (r *reconciler) establish(ctx context.Context, w *v1beta2.Watcher) (outcome, error) {
	manager, err := managerOf(w)
	if err != nil {
		return outcome{}, err
	}
	_, dropped, err := watchOf(w)
	if err != nil {
		return outcome{}, problem(reasonWatchInvalid, "%v", err)
	}
	if err := r.removeOthers(ctx, client.ObjectKeyFromObject(w)); err != nil {
		return outcome{}, err
	}
	result, err := r.route(ctx, w, manager)
	if err != nil {
		return outcome{}, err
	}
	// The runtimes watch without the invalid condition, so events arrive, and too many.
	if dropped != nil {
		result.state, result.reason, result.message = stateWarning, reasonConditionInvalid, dropped.Error()
	}
	return result, nil
}

// route applies the route, unless routes are turned off.
func (r *reconciler) route(ctx context.Context, w *v1beta2.Watcher, manager core.Manager) (outcome, error) {
	if r.routing == nil {
		return outcome{stateReady, metav1.ConditionTrue, reasonRouteNotNeeded, "routes are turned off"}, nil
	}
	if err := checkPort(w.Spec.ServiceInfo); err != nil {
		return outcome{}, err
	}
	if err := r.yield(ctx, w, manager); err != nil {
		return outcome{}, err
	}
	selector, err := selectorOf(&w.Spec.Gateway.LabelSelector)
	if err != nil {
		return outcome{}, err
	}
	route, where, err := r.routing.build(ctx, r.gateways, selector, w, manager)
	if err != nil {
		return outcome{}, err
	}
	if err := r.apply(ctx, w, route); err != nil {
		return outcome{}, err
	}
	// A cache may still have the former route, with the former conditions.
	if err := r.routing.check(ctx, r.fresh, client.ObjectKeyFromObject(w)); err != nil {
		return outcome{}, err
	}
	return outcome{
		stateReady, metav1.ConditionTrue, reasonRouteApplied,
		fmt.Sprintf("%s leads %s from %s", r.routing.kind(), strings.Join(prefixes(manager), ", "), where),
	}, nil
}

// checkPort is for Watchers that were stored before their definition had its rules.
func checkPort(service v1beta2.Service) error {
	const maxPort = 65535
	if service.Port < 1 || service.Port > maxPort {
		return problem(reasonWatchInvalid, "spec.serviceInfo.port: want 1 to %d, have %d", maxPort, service.Port)
	}
	return nil
}
