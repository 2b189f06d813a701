package watcher

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
)

// The reasons of the condition [v1beta2.ConditionRouteReady].
const (
	// ReasonRouteApplied means that the route is as it should be.
	ReasonRouteApplied = "RouteApplied"
	// ReasonManagerShared means that another Watcher leads the same manager to another service, so that only one of them gets events.
	ReasonManagerShared = "ManagerShared"
	// ReasonManagerMissing means that neither the spec nor the label names a manager.
	ReasonManagerMissing = "ManagerMissing"
	// ReasonManagerInvalid means that the label is no DNS-1123 label.
	ReasonManagerInvalid = "ManagerInvalid"
	// ReasonWatchInvalid means that the runtimes can not watch it, so it is left out there: it is older than the rules of its definition.
	ReasonWatchInvalid = "WatchInvalid"
	// ReasonInvalidSelector means that no gateway can be looked for.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonGatewayNotFound means that no gateway has the labels.
	ReasonGatewayNotFound = "GatewayNotFound"
	// ReasonGatewayWithoutHosts means that the gateways serve no HTTP.
	ReasonGatewayWithoutHosts = "GatewayWithoutHosts"
	// ReasonRouteConflict means that somebody else has made a route of that name.
	ReasonRouteConflict = "RouteConflict"
	// ReasonRouteRefused means that the API server did not take the route; it is tried again.
	ReasonRouteRefused = "RouteRefused"
)

// formerCondition is what the controller of before has left in a status.
const formerCondition = "VirtualService"

// routeProblem is why there is no route. Only a change of something that is watched can solve it, so it is not tried again.
type routeProblem struct{ reason, message string }

func (p *routeProblem) Error() string { return p.message }

func problem(reason, format string, args ...any) error {
	return &routeProblem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// outcome is what a status says.
type outcome struct {
	state           v1beta2.State
	status          metav1.ConditionStatus
	reason, message string
}

// failed returns what a status says of an error, and whether it is worth another try.
func failed(err error) (o outcome, again error) {
	o = outcome{state: v1beta2.StateError, status: metav1.ConditionFalse, reason: ReasonRouteRefused, message: err.Error()}

	var known *routeProblem

	switch {
	case errors.As(err, &known):
		o.reason = known.reason
	case errors.Is(err, ErrNoManager):
		o.reason = ReasonManagerMissing
	case errors.Is(err, ErrInvalidManager):
		o.reason = ReasonManagerInvalid
	default:
		again = err
	}

	return o, again
}

// report writes the status if that changes it, and an Event if there is news.
func (r *reconciler) report(ctx context.Context, w *v1beta2.Watcher, o outcome) error {
	before := w.DeepCopy()
	old := meta.FindStatusCondition(before.Status.Conditions, v1beta2.ConditionRouteReady)

	w.Status.State = o.state
	w.Status.ObservedGeneration = w.Generation
	meta.RemoveStatusCondition(&w.Status.Conditions, formerCondition)
	meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{
		Type: v1beta2.ConditionRouteReady, Status: o.status, Reason: o.reason, Message: shorten(o.message), ObservedGeneration: w.Generation,
	})

	if equality.Semantic.DeepEqual(before.Status, w.Status) {
		return nil
	}

	// With the resource version, so that a condition that somebody else has written meanwhile is not lost.
	if err := r.client.Status().Update(ctx, w); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}

	if old == nil || old.Reason != o.reason || old.Message != shorten(o.message) {
		r.tell(w, o)
	}

	return nil
}

func (r *reconciler) tell(w *v1beta2.Watcher, o outcome) {
	kind := corev1.EventTypeNormal
	if o.state != v1beta2.StateReady {
		kind = corev1.EventTypeWarning
	}

	r.events.Eventf(w, nil, kind, o.reason, "Route", "%s", shorten(o.message))
}

// maxMessage is what an Event may hold (events.k8s.io/v1: note).
const maxMessage = 1000

func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}

	return message[:maxMessage] + "…"
}
