package watcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	conflictPause = time.Second
	countInterval = 30 * time.Second
	maxPort       = 65535
)

// reconciler keeps the route and the status of each Watcher. The workers of its controller call it,
// and only seen changes after set-up.
type reconciler struct {
	client   client.Client
	fresh    client.Reader // without cache
	gateways client.Reader
	events   events.EventRecorder
	routing  routing // nil: no routes
	opts     Options
	seen     sync.Map // the UID of each Watcher, by its name. One reconcile of a Watcher runs at a time.
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

	if err := r.replace(ctx, w); err != nil {
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
	err := client.IgnoreNotFound(r.client.Patch(ctx, w, patch))
	return option.Unless(err == nil, "remove the finalizer %s: %w", former, err)
}

// establish keeps the former route while a new one cannot be made, as it may still work.
func (r *reconciler) establish(ctx context.Context, w *v1beta2.Watcher) (outcome, error) {
	manager, err := managerOf(w, r.opts.Names)
	if err != nil {
		return outcome{}, err
	}

	_, dropped, err := watchOf(w, r.opts.Names)
	if err != nil {
		return outcome{}, problem(v1beta2.ReasonWatchInvalid, "%v", err)
	}
	if err := r.removeRoutes(ctx, identityOf(w), r.kind()); err != nil {
		return outcome{}, err
	}

	result, err := r.route(ctx, w, manager)
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

// incomplete returns a problem if a Watcher has not the fields of a route.
func incomplete(w *v1beta2.Watcher) error {
	if w.Spec.ServiceInfo == (v1beta2.Service{}) {
		return problem(v1beta2.ReasonServiceMissing, "routes are turned on: want spec.serviceInfo, have none")
	}

	selector := &w.Spec.Gateway.LabelSelector
	if len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0 {
		return problem(v1beta2.ReasonGatewayMissing,
			"routes are turned on: want spec.gateway.selector, have none, and an empty one would select every gateway")
	}
	return nil
}

func (r *reconciler) route(ctx context.Context, w *v1beta2.Watcher, manager core.Manager) (outcome, error) {
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
		v1beta2.StateReady, metav1.ConditionTrue, v1beta2.ReasonRouteApplied,
		fmt.Sprintf("%s leads %s from %s", r.routing.kind(), strings.Join(prefixes(manager), ", "), where),
	}, nil
}

// formerCondition is a condition of a controller that this one replaces.
const formerCondition = "VirtualService"

// routeProblem is the reason why a Watcher has no working route. It is not retried: only a change
// of an object that the controller watches can solve it.
type routeProblem struct{ reason, message string }

func (p *routeProblem) Error() string { return p.message }

func problem(reason, format string, args ...any) error {
	return &routeProblem{reason: reason, message: fmt.Sprintf(format, args...)}
}

type outcome struct {
	state           v1beta2.State
	status          metav1.ConditionStatus
	reason, message string
}

func failed(err error) (o outcome, again error) {
	o = outcome{state: v1beta2.StateError, status: metav1.ConditionFalse, reason: v1beta2.ReasonRouteRefused, message: err.Error()}
	var known *routeProblem

	switch {
	case errors.As(err, &known) && known.reason == v1beta2.ReasonRoutePending:
		o.state = v1beta2.StateProcessing
		o.status = metav1.ConditionUnknown
		o.reason = known.reason
	case errors.As(err, &known):
		o.reason = known.reason
	default:
		again = err
	}

	return o, again
}

func (r *reconciler) report(ctx context.Context, w *v1beta2.Watcher, o outcome) error {
	before := w.DeepCopy()
	old := meta.FindStatusCondition(before.Status.Conditions, v1beta2.ConditionRouteReady)
	route := metav1.Condition{
		Type: v1beta2.ConditionRouteReady, Status: o.status, Reason: o.reason, ObservedGeneration: w.Generation,
		Message: remote.TextOf(o.message, remote.MaxNote), // It is the note of the Event, too.
	}
	w.Status.State = o.state
	w.Status.ObservedGeneration = w.Generation
	meta.RemoveStatusCondition(&w.Status.Conditions, formerCondition)
	meta.SetStatusCondition(&w.Status.Conditions, route)
	meta.SetStatusCondition(&w.Status.Conditions, r.readyOf(before, route))

	if equality.Semantic.DeepEqual(before.Status, w.Status) {
		return nil
	}
	// An update with the resource version loses no condition that others have written meanwhile.
	if err := r.client.Status().Update(ctx, w); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	if old != nil && old.Reason == route.Reason && old.Message == route.Message {
		return nil
	}

	kind := corev1.EventTypeNormal
	if o.state == v1beta2.StateError || o.state == v1beta2.StateWarning {
		kind = corev1.EventTypeWarning
	}

	r.events.Eventf(w, nil, kind, route.Reason, "Route", "%s", route.Message)
	return nil
}

// readyOf returns the condition v1beta2.ConditionReady for that of the route. Once true, it stays
// true for that generation while the route works. A runtime that is away breaks no Watcher, and
// neither does a new process that has not seen the runtimes yet.
func (r *reconciler) readyOf(w *v1beta2.Watcher, ready metav1.Condition) metav1.Condition {
	ready.Type = v1beta2.ConditionReady
	if ready.Status != metav1.ConditionTrue || r.opts.Installed == nil {
		return ready
	}

	installed, all := r.opts.Installed(client.ObjectKeyFromObject(w), w.Generation)
	ready.Message = fmt.Sprintf("installed in %d of %d runtimes; %s", installed, all, ready.Message)
	last := meta.FindStatusCondition(w.Status.Conditions, v1beta2.ConditionReady)
	wasReady := last != nil && last.Status == metav1.ConditionTrue && last.ObservedGeneration == w.Generation
	if all > 0 && installed == 0 && !wasReady {
		ready.Status = metav1.ConditionFalse
		ready.Reason = v1beta2.ReasonNotInstalled
	}

	return ready
}
