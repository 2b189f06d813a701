package watcher

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// The types of conditions.
const (
	// conditionRouteReady reports whether events reach the service.
	conditionRouteReady = "RouteReady"
	// conditionReady reports whether a Watcher works, for kubectl wait, Flux and Argo CD: the route
	// is ready, and a runtime watches, as far as the runtimes are known. Its message counts them.
	conditionReady = "Ready"
)

// The reasons of conditionRouteReady.
const (
	reasonRouteApplied   = "RouteApplied"
	reasonRouteNotNeeded = "RouteNotNeeded"
	// reasonRoutePending means that a gateway has not accepted the route yet.
	reasonRoutePending = "RoutePending"
	// reasonRouteRejected means that a gateway has rejected the route.
	reasonRouteRejected = "RouteRejected"
	// reasonManagerShared means that an older Watcher leads the same manager to another service.
	reasonManagerShared  = "ManagerShared"
	reasonManagerMissing = "ManagerMissing"
	reasonManagerInvalid = "ManagerInvalid"
	// reasonWatchInvalid means that the Watcher was stored before its definition had its rules.
	reasonWatchInvalid = "WatchInvalid"
	// reasonConditionInvalid means that a condition of spec.matchConditions is not used.
	reasonConditionInvalid    = "ConditionInvalid"
	reasonInvalidSelector     = "InvalidSelector"
	reasonGatewayNotFound     = "GatewayNotFound"
	reasonGatewayWithoutHosts = "GatewayWithoutHosts"
	// reasonRouteConflict means that a route of that name has another owner.
	reasonRouteConflict = "RouteConflict"
	// reasonRouteRefused means that a request to the API server failed. It is retried.
	reasonRouteRefused = "RouteRefused"
	// reasonNotInstalled means that no runtime watches it yet, for conditionReady.
	reasonNotInstalled = "NotInstalled"
)

// formerCondition is a condition of a controller that this one replaces.
const formerCondition = "VirtualService"

// routeProblem is the reason why a Watcher has no working route. It is not retried: only a change
// of an object that the controller watches can solve it.
type routeProblem struct{ reason, message string }

func (p *routeProblem) Error() string { return p.message }

func problem(reason, format string, args ...any) error {
	return &routeProblem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// The states of a Watcher that this package writes. Others may have stored Deleting and Unmanaged.
const (
	stateProcessing = "Processing"
	stateReady      = "Ready"
	stateWarning    = "Warning"
	stateError      = "Error"
)

// outcome is the content of a status.
type outcome struct {
	state           string
	status          metav1.ConditionStatus
	reason, message string
}

// failed returns the outcome of an error, and the error again when it must be retried.
func failed(err error) (o outcome, again error) {
	o = outcome{state: stateError, status: metav1.ConditionFalse, reason: reasonRouteRefused, message: err.Error()}
	var known *routeProblem
	switch {
	case errors.As(err, &known) && known.reason == reasonRoutePending:
		o.state, o.status, o.reason = stateProcessing, metav1.ConditionUnknown, known.reason
	case errors.As(err, &known):
		o.reason = known.reason
	default:
		again = err
	}
	return o, again
}

// report writes the status if it changes, and an Event if reason or message change.
func (r *reconciler) report(ctx context.Context, w *v1beta2.Watcher, o outcome) error {
	before := w.DeepCopy()
	old := meta.FindStatusCondition(before.Status.Conditions, conditionRouteReady)
	route := metav1.Condition{
		Type: conditionRouteReady, Status: o.status, Reason: o.reason, ObservedGeneration: w.Generation,
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
	if o.state == stateError || o.state == stateWarning {
		kind = corev1.EventTypeWarning
	}
	r.events.Eventf(w, nil, kind, route.Reason, "Route", "%s", route.Message)
	return nil
}

// readyOf returns the condition conditionReady for that of the route. Once true, it stays true for
// that generation while the route works. A runtime that is away breaks no Watcher, and neither does
// a new process that has not seen the runtimes yet.
func (r *reconciler) readyOf(w *v1beta2.Watcher, ready metav1.Condition) metav1.Condition {
	ready.Type = conditionReady
	if ready.Status != metav1.ConditionTrue || r.opts.Installed == nil {
		return ready
	}
	installed, all := r.opts.Installed(client.ObjectKeyFromObject(w), w.Generation)
	ready.Message = fmt.Sprintf("installed in %d of %d runtimes; %s", installed, all, ready.Message)
	last := meta.FindStatusCondition(w.Status.Conditions, conditionReady)
	wasReady := last != nil && last.Status == metav1.ConditionTrue && last.ObservedGeneration == w.Generation
	if all > 0 && installed == 0 && !wasReady {
		ready.Status, ready.Reason = metav1.ConditionFalse, reasonNotInstalled
	}
	return ready
}
