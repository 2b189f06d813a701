package watcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// routing makes and checks the routes of one kind. The reconciler has one, or none without routes.
type routing interface {
	kind() string
	gateway() client.Object
	route() client.Object
	// build returns the route of a Watcher through all gateways that a selector finds, without
	// owner, and its way for messages. When there can be none, the error is a [routeProblem].
	build(
		ctx context.Context, reader client.Reader, selector labels.Selector, w *v1beta2.Watcher, m core.Manager,
	) (client.Object, string, error)
	// check returns a [routeProblem] unless the gateways have accepted the stored route.
	check(ctx context.Context, reader client.Reader, route client.ObjectKey) error
}

func prefixes(manager core.Manager) []string {
	versions := []contract.Version{contract.V1, contract.V2, contract.V3}
	paths := make([]string, len(versions))
	for i, version := range versions {
		paths[i] = "/" + string(version) + "/" + string(manager) + "/"
	}
	return paths
}

// apply creates or corrects the route. Fields that others have added stay.
func (r *reconciler) apply(ctx context.Context, w *v1beta2.Watcher, route client.Object) error {
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
	current, err := r.stored(ctx, r.routing, client.ObjectKeyFromObject(w))
	if err != nil || current == nil {
		return nil, err
	}
	if r.owns(current, identityOf(w)) {
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

// stored reads without cache. A cache would wait for kinds that are not installed.
func (r *reconciler) stored(ctx context.Context, of routing, key client.ObjectKey) (client.Object, error) {
	route, err := serverside.Get(ctx, r.fresh, key, of.route())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", of.kind(), err)
	}
	return route, nil
}

// identity is that of a Watcher. An API server gives each UID once.
type identity struct {
	name types.NamespacedName
	uid  types.UID // "" for a Watcher that is gone, and that this process has not seen.
}

func identityOf(w *v1beta2.Watcher) identity { return identity{client.ObjectKeyFromObject(w), w.UID} }

// nameOwner returns the reference of a route to a Watcher of that name.
func (r *reconciler) nameOwner(route client.Object, name string) (owner metav1.OwnerReference, found bool) {
	kind := r.opts.Names.GroupVersionKind()
	references := route.GetOwnerReferences()
	n := slices.IndexFunc(references, func(owner metav1.OwnerReference) bool {
		return owner.Kind == kind.Kind && owner.Name == name && strings.HasPrefix(owner.APIVersion, kind.Group+"/")
	})
	if n < 0 {
		return metav1.OwnerReference{}, false
	}

	return references[n], true
}

// owns reports whether a route belongs to a Watcher, and to this operator. A route that was
// restored from a backup, or of a Watcher that was created again, has another UID. The identity of
// a Watcher that is gone has no UID, and then the label of this controller decides. Kubernetes
// also deletes a route if the owner that it names does not exist.
func (r *reconciler) owns(route client.Object, of identity) bool {
	owner, found := r.nameOwner(route, of.name.Name)
	if !found {
		return false
	}

	mark := route.GetAnnotations()[r.opts.Names.InstalledBy()]
	if mark != "" && mark != r.opts.Owner {
		return false
	}
	if of.uid == "" {
		return route.GetLabels()[r.opts.Names.ManagedBy()] == fieldOwner
	}

	return owner.UID == of.uid
}

// replace deletes the routes of a former Watcher with the name of w, which this process has seen.
func (r *reconciler) replace(ctx context.Context, w *v1beta2.Watcher) error {
	former := r.lastSeen(client.ObjectKeyFromObject(w))
	if former != "" && former != w.UID {
		if err := r.removeRoutes(ctx, identity{client.ObjectKeyFromObject(w), former}, ""); err != nil {
			return err
		}
	}

	r.seen.Store(client.ObjectKeyFromObject(w), w.UID)
	return nil
}

// lastSeen returns "" for a Watcher that this process has not seen.
func (r *reconciler) lastSeen(name types.NamespacedName) types.UID {
	last, _ := r.seen.Load(name)
	uid, _ := last.(types.UID)
	return uid
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

		current, err := r.stored(ctx, routes, of.name)
		if err == nil && current != nil && r.owns(current, of) {
			// The route may have another owner by now: then the next reconcile decides.
			err = ownership.DeleteUnchanged(ctx, r.client, current)
		}

		isForeignKind := routes.kind() != r.kind()
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

func (r *reconciler) kind() string {
	if r.routing == nil {
		return ""
	}
	return r.routing.kind()
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

// yield removes the route of a Watcher, and returns a problem, when an older Watcher leads its
// manager to another service. So a new Watcher cannot take over the events of a manager.
func (r *reconciler) yield(ctx context.Context, w *v1beta2.Watcher, m core.Manager) error {
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

// byAge compares names when both were created in the same second.
func byAge(a, b *v1beta2.Watcher) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
}
