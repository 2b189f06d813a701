package watcher

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// formerCondition is a condition of a controller that this one replaces.
const formerCondition = "VirtualService"

func (r *reconciler) reportStatus(ctx context.Context, w *v1beta2.Watcher, o outcome) error {
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

// readyOf returns the condition v1beta2.ConditionReady for the condition of the route. Once true,
// it stays true for that generation while the route works. A runtime that is away breaks no
// Watcher, and neither does a new process that has not seen the runtimes yet.
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
