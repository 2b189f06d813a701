package watcher

import (
	"context"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// yieldToElder removes the route of a Watcher, and returns a problem, when an older Watcher leads
// its manager to another service. So a new Watcher cannot take over the events of a manager.
func (r *reconciler) yieldToElder(ctx context.Context, w *v1beta2.Watcher, m core.Manager) error {
	watchers := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, watchers); err != nil {
		return fmt.Errorf("list Watchers: %w", err)
	}

	elder := r.elderOf(w, m, watchers.Items)
	if elder == nil {
		return nil
	}
	if err := r.removeRoutes(ctx, identityOf(w), ""); err != nil {
		return err
	}

	return problem(v1beta2.ReasonManagerShared, "the older Watcher %s/%s leads manager %s to the service %s/%s: use the same "+
		"service or another manager", elder.Namespace, elder.Name, m,
		elder.Spec.ServiceInfo.Namespace, elder.Spec.ServiceInfo.Name)
}

// elderOf returns nil if no Watcher before w leads the manager to another service.
func (r *reconciler) elderOf(w *v1beta2.Watcher, m core.Manager, watchers []v1beta2.Watcher) *v1beta2.Watcher {
	eldest := w
	for i := range watchers {
		other := &watchers[i]
		hasRoute := incomplete(other) == nil && other.DeletionTimestamp.IsZero()
		if hasRoute && managerName(other, r.opts.Names) == string(m) && byAge(other, eldest) < 0 {
			eldest = other
		}
	}

	if eldest.Spec.ServiceInfo == w.Spec.ServiceInfo {
		return nil
	}
	return eldest
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
