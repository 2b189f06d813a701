package watcher

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// yield removes the route of a Watcher, and returns a problem, when an older Watcher leads its
// manager to another service. So a new Watcher cannot take over the events of a manager.
func (r *reconciler) yield(ctx context.Context, w *v1beta2.Watcher, m core.Manager) error {
	watchers := &v1beta2.WatcherList{}
	if err := r.client.List(ctx, watchers); err != nil {
		return fmt.Errorf("list Watchers: %w", err)
	}
	elder := elderOf(w, m, watchers.Items)
	if elder == nil {
		return nil
	}
	if err := r.remove(ctx, r.client, r.routing, client.ObjectKeyFromObject(w)); err != nil {
		return err
	}
	return problem(reasonManagerShared, "the older Watcher %s/%s leads manager %s to the service %s/%s: use the same "+
		"service or another manager", elder.Namespace, elder.Name, m,
		elder.Spec.ServiceInfo.Namespace, elder.Spec.ServiceInfo.Name)
}

// elderOf returns the oldest Watcher before w that leads the manager to another service, nil if
// there is none.
func elderOf(w *v1beta2.Watcher, m core.Manager, watchers []v1beta2.Watcher) *v1beta2.Watcher {
	eldest := w
	for i := range watchers {
		other := &watchers[i]
		if managerName(other) == string(m) && other.DeletionTimestamp.IsZero() && older(other, eldest) {
			eldest = other
		}
	}
	if eldest.Spec.ServiceInfo == w.Spec.ServiceInfo {
		return nil
	}
	return eldest
}

// older compares names when both were created in the same second.
func older(a, b *v1beta2.Watcher) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}
