package watcher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// routing is what is different between the kinds of routes.
type routing interface {
	// kind is that of the route, for people.
	kind() string
	// gateway and route return empty objects of their types.
	gateway() client.Object
	route() client.Object
	// build returns the route of a Watcher through all gateways that a selector finds, without owner, and where it leads, for people.
	// When there is none, the error is a [routeProblem].
	build(ctx context.Context, reader client.Reader, selector labels.Selector, w *v1beta2.Watcher, m core.Manager) (client.Object, string, error)
}

// prefixes are the beginnings of the paths that lead to a manager, one for each contract.
func prefixes(manager core.Manager) []string {
	versions := []contract.Version{contract.V1, contract.V2, contract.V3}
	paths := make([]string, len(versions))

	for i, version := range versions {
		paths[i] = "/" + string(version) + "/" + string(manager) + "/"
	}

	return paths
}

// apply makes the route be as it should, whoever changed it, and leaves alone what others have added beside.
func (r *reconciler) apply(ctx context.Context, w *v1beta2.Watcher, route client.Object) error {
	route.SetName(w.Name)
	route.SetNamespace(w.Namespace)
	route.SetLabels(map[string]string{v1beta2.ManagedByLabel: r.opts.FieldOwner})
	route.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(w, v1beta2.GroupVersion().WithKind(v1beta2.Kind))})

	if err := r.checkOwner(ctx, w); err != nil {
		return err
	}

	content, err := serverside.Content(route)
	if err != nil {
		return err //nolint:wrapcheck // It names the route.
	}

	return serverside.Apply(ctx, r.client, &unstructured.Unstructured{Object: content}, r.opts.FieldOwner) //nolint:wrapcheck // The same.
}

// checkOwner refuses to take over a route of that name that somebody else has made, be it a moment ago.
func (r *reconciler) checkOwner(ctx context.Context, w *v1beta2.Watcher) error {
	current := r.routing.route()

	err := r.fresh.Get(ctx, client.ObjectKeyFromObject(w), current)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("read %s: %w", r.routing.kind(), err)
	}

	if ownedBy(current, w.Name) {
		return nil
	}

	return problem(ReasonRouteConflict, "%s %s/%s is there already and does not belong to this Watcher: delete or rename one of them",
		r.routing.kind(), w.Namespace, w.Name)
}

// ownedBy goes by the name: a Watcher that was deleted and made again takes over the route of the first one.
func ownedBy(route client.Object, name string) bool {
	return slices.ContainsFunc(route.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
		return owner.Kind == v1beta2.Kind && owner.Name == name && strings.HasPrefix(owner.APIVersion, v1beta2.Group+"/")
	})
}

// remove deletes the route of a Watcher that is gone. The garbage collector would, too, later.
func (r *reconciler) remove(ctx context.Context, key client.ObjectKey) error {
	current := r.routing.route()

	err := r.client.Get(ctx, key, current)
	if err != nil {
		return client.IgnoreNotFound(err)
	}

	if !ownedBy(current, key.Name) {
		return nil
	}

	return client.IgnoreNotFound(r.client.Delete(ctx, current, client.Preconditions{UID: new(current.GetUID())}))
}
