package watcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// writeRoute creates or corrects the route. Fields that others have added stay.
func (r *reconciler) writeRoute(ctx context.Context, w *v1beta2.Watcher, route client.Object) error {
	owner := metav1.NewControllerRef(w, r.opts.Names.GroupVersionKind())
	route.SetName(w.Name)
	route.SetNamespace(w.Namespace)
	route.SetLabels(map[string]string{r.opts.Names.ManagedBy(): fieldOwner})
	route.SetOwnerReferences([]metav1.OwnerReference{*owner})

	if r.opts.Owner != "" {
		route.SetAnnotations(map[string]string{r.opts.Names.InstalledBy(): r.opts.Owner})
	}

	current, err := r.readOwn(ctx, w)
	if err != nil {
		return err
	}

	return ownership.ApplyTyped(ctx, r.client, route, route.GetObjectKind().GroupVersionKind(), current, fieldOwner)
}

// readOwn returns the route of a Watcher, nil if there is none. It fails if the route is foreign.
func (r *reconciler) readOwn(ctx context.Context, w *v1beta2.Watcher) (client.Object, error) {
	current, err := r.readStored(ctx, r.routing, client.ObjectKeyFromObject(w))
	if err != nil || current == nil {
		return nil, err
	}
	if r.ownsRoute(current, identityOf(w)) {
		return current, nil
	}

	former, names := r.nameOwner(current, w.Name)
	if names && former.UID != w.UID {
		return nil, problem(v1beta2.ReasonRouteConflict,
			"%s %s/%s belongs to another Watcher of this name, with the UID %.80s: if that Watcher is gone, the "+
				"garbage collector deletes the route, or delete it",
			r.routing.kind(), w.Namespace, w.Name, former.UID)
	}

	return nil, problem(v1beta2.ReasonRouteConflict,
		"%s %s/%s exists and does not belong to this Watcher: delete or rename one of them",
		r.routing.kind(), w.Namespace, w.Name)
}

// readStored reads without cache. A cache would wait for kinds that are not installed.
func (r *reconciler) readStored(ctx context.Context, of routing, key client.ObjectKey) (client.Object, error) {
	route, err := serverside.Get(ctx, r.fresh, key, of.newRoute())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", of.kind(), err)
	}
	return route, nil
}

// removeFormer deletes the routes of a former Watcher with the name of w, which this process has
// seen.
func (r *reconciler) removeFormer(ctx context.Context, w *v1beta2.Watcher) error {
	former := r.lastSeen(client.ObjectKeyFromObject(w))
	if former != "" && former != w.UID {
		if err := r.removeRoutes(ctx, identity{client.ObjectKeyFromObject(w), former}, ""); err != nil {
			return err
		}
	}

	r.seen.Store(client.ObjectKeyFromObject(w), w.UID)
	return nil
}

// removeAll deletes the routes of a Watcher that is gone.
func (r *reconciler) removeAll(ctx context.Context, name types.NamespacedName) error {
	if err := r.removeRoutes(ctx, identity{name, r.lastSeen(name)}, ""); err != nil {
		return err
	}

	r.seen.Delete(name)
	return nil
}

// removeRoutes deletes the routes of a Watcher, of every kind except one. An earlier setting may
// have made routes of another kind. It skips such kinds if they are not installed or not allowed.
// The garbage collector would do the same for a Watcher that is gone, later.
func (r *reconciler) removeRoutes(ctx context.Context, of identity, except string) error {
	for _, routes := range []routing{virtualServices{}, httpRoutes{}} {
		if routes.kind() == except {
			continue
		}

		current, err := r.readStored(ctx, routes, of.name)
		if err == nil && current != nil && r.ownsRoute(current, of) {
			// The route may have another owner by now: then the next reconcile decides.
			err = ownership.DeleteUnchanged(ctx, r.client, current)
		}

		isForeignKind := routes.kind() != r.routeKind()
		isUnavailable := meta.IsNoMatchError(err) || apierrors.IsForbidden(err)
		if isForeignKind && isUnavailable {
			continue
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", routes.kind(), err)
		}
	}
	return nil
}

// selectorOf returns the selector of the gateways, which has the JSON of a [metav1.LabelSelector].
// An older definition accepted invalid selectors.
func selectorOf(s *v1beta2.GatewaySelector) (labels.Selector, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, problem(v1beta2.ReasonInvalidSelector, "spec.gateway.selector: %v", err)
	}

	var converted metav1.LabelSelector
	err = json.Unmarshal(text, &converted)
	selector, invalid := metav1.LabelSelectorAsSelector(&converted)
	if err := errors.Join(err, invalid); err != nil {
		return nil, problem(v1beta2.ReasonInvalidSelector, "spec.gateway.selector: %v", err)
	}

	return selector, nil
}
