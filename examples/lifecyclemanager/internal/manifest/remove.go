package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// disableModule is the first phase of the removal of a module: its custom resources end. The user
// may take it back until they are gone. Then the Manifest is deleted.
func (r *Reconciler) disableModule(ctx context.Context, manifest *v1beta2.Manifest) (ctrl.Result, error) {
	if err := skr.Hold(ctx, r.Client, manifest, v1beta2.ManifestFinalizer); err != nil {
		return ctrl.Result{}, err
	}

	awaited, err := r.removeFirst(ctx, manifest)
	if err != nil && !errors.Is(err, runtimes.ErrGone) {
		return ctrl.Result{}, err
	}
	if awaited == "" {
		// A Manifest that was enabled again is another version.
		unchanged := client.Preconditions{UID: new(manifest.UID), ResourceVersion: new(manifest.ResourceVersion)}
		err := skr.Ended(r.Client.Delete(ctx, manifest, unchanged))
		return ctrl.Result{RequeueAfter: skr.Backoff(metav1.Now())}, err
	}

	status := manifest.Status
	status.State = v1beta2.Deleting
	status.Message = awaited
	return ctrl.Result{RequeueAfter: skr.Backoff(*manifest.Spec.DisabledSince)}, r.reportStatus(ctx, manifest, status)
}

// removeFirst removes the custom resources of a module, and returns the first that is not gone.
func (r *Reconciler) removeFirst(ctx context.Context, manifest *v1beta2.Manifest) (awaited string, err error) {
	if len(manifest.Status.Inventory) == 0 {
		return "", nil
	}

	there, cluster, err := r.connectRuntime(ctx, manifest)
	if err != nil || isElsewhere(manifest, cluster) {
		return "", err
	}

	if manifest.Status.CustomResourceCreated {
		status := manifest.Status
		status.State = v1beta2.Deleting
		status.CustomResourceCreated = false // Enabled again, it is created again.
		if err := r.reportStatus(ctx, manifest, status); err != nil {
			return "", err
		}
	}

	plan, err := r.planRemoval(ctx, there, manifest, manifest.Status.Inventory)
	if err != nil {
		return "", err
	}

	left, awaited, err := plan.removeCustoms(ctx, there)
	if err == nil && awaited == "" && len(left) > 0 {
		awaited = ending(left[0])
	}
	return awaited, err
}

// remove removes the objects and then the finalizer. Without a runtime there is nothing to remove,
// and a runtime that does not answer for GiveUp counts as gone.
func (r *Reconciler) remove(ctx context.Context, manifest *v1beta2.Manifest) (ctrl.Result, error) {
	there, awaited, err := r.removeObjects(ctx, manifest)
	isDone := err == nil && awaited == ""
	gaveUp := skr.GaveUp(manifest, r.GiveUp, err) && skr.IsSilent(ctx, there)
	if isDone || errors.Is(err, runtimes.ErrGone) || gaveUp {
		return ctrl.Result{}, skr.Release(ctx, r.Client, manifest, v1beta2.ManifestFinalizer)
	}
	if err != nil {
		return ctrl.Result{}, err
	}

	status := manifest.Status
	status.State = v1beta2.Deleting
	status.Message = awaited
	return ctrl.Result{RequeueAfter: skr.Backoff(*manifest.DeletionTimestamp)}, r.reportStatus(ctx, manifest, status)
}

// removeObjects does not connect to the runtime of a Manifest that has never applied an object. In
// a cluster other than the cluster of the inventory, there is nothing to remove.
func (r *Reconciler) removeObjects(
	ctx context.Context, manifest *v1beta2.Manifest,
) (there *skr.Runtime, awaited string, err error) {
	if len(manifest.Status.Inventory) == 0 {
		return nil, "", nil
	}

	there, cluster, err := r.connectRuntime(ctx, manifest)
	if err != nil || isElsewhere(manifest, cluster) {
		return there, "", err
	}

	left, awaited, err := r.removeAll(ctx, there, manifest, manifest.Status.Inventory)
	if err == nil && awaited == "" && len(left) > 0 {
		awaited = ending(left[0])
	}
	return there, awaited, err
}

// removeAll deletes objects of the inventory in phases: the custom resources of the module, then
// its other objects with its manager, then its Namespaces, then the definitions. The manager takes
// the finalizers off, so it must not end before them. Objects of another Manifest are released. It
// returns the objects that are not gone yet, and the custom resource that the next phase awaits.
func (r *Reconciler) removeAll(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest, inventory []v1beta2.Object,
) (left []*unstructured.Unstructured, awaited string, err error) {
	if len(inventory) == 0 {
		return nil, "", nil
	}

	plan, err := r.planRemoval(ctx, there, manifest, inventory)
	if err != nil {
		return nil, "", err
	}

	left, awaited, err = plan.removeCustoms(ctx, there)
	if err != nil {
		return nil, "", err
	}

	phases := [][]v1beta2.Object{plan.others, plan.namespaces, plan.definitions}
	if awaited != "" {
		return append(objectsOf(plan.customs), objectsOf(slices.Concat(phases...))...), awaited, nil
	}

	for _, phase := range phases {
		if len(left) > 0 {
			left = append(left, objectsOf(phase)...)
			continue
		}

		left, err = there.DeleteAll(ctx, objectsOf(phase))
		if err != nil {
			return nil, "", err
		}
	}
	return left, "", nil
}

// plan contains the objects to delete, by phase.
type plan struct {
	customs, others, namespaces, definitions []v1beta2.Object
	// kinds are the kinds of the definitions. Their objects end before the manager of the module.
	kinds []schema.GroupVersionKind
	// theirs are the objects of other modules that also have one of the definitions. Another
	// manager handles these objects.
	theirs []v1beta2.Object
}

// planRemoval leaves out the objects of other Manifests. A module that ends needs its manager for
// as long as there are objects of its kinds, also if a definition stays for another module.
func (r *Reconciler) planRemoval(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest, inventory []v1beta2.Object,
) (*plan, error) {
	possible, err := there.Possible(objectsOf(inventory))
	if err != nil {
		return nil, err
	}

	all := inventoryOf(possible)
	mine, theirs, err := r.withoutShared(ctx, manifest, all)
	if err != nil {
		return nil, err
	}

	p := &plan{theirs: theirs}
	definitions, rest := split(mine, isDefinition)
	p.definitions = definitions

	isEnding := manifest.Spec.DisabledSince != nil || !manifest.DeletionTimestamp.IsZero()
	if isEnding {
		definitions, _ = split(all, isDefinition)
	}

	p.kinds, err = kindsOf(ctx, there, definitions)
	if err != nil {
		return nil, err
	}

	p.customs, rest = split(rest, func(o v1beta2.Object) bool {
		return slices.ContainsFunc(p.kinds, func(kind schema.GroupVersionKind) bool {
			return kind.Group == o.Group && kind.Kind == o.Kind
		})
	})
	p.namespaces, p.others = split(rest, func(o v1beta2.Object) bool { return o.Group == "" && o.Kind == "Namespace" })
	return p, nil
}

// removeCustoms returns the custom resources that are not gone, and the object of a user that is
// awaited.
func (p *plan) removeCustoms(
	ctx context.Context, there *skr.Runtime,
) (left []*unstructured.Unstructured, awaited string, err error) {
	left, err = there.DeleteAll(ctx, objectsOf(p.customs))
	if err != nil {
		return nil, "", err
	}

	awaited, err = p.findInstance(ctx, there)
	return left, awaited, err
}

// withoutShared returns the objects that no other Manifest of the runtime has, and the objects of
// other Manifests with a common definition. Of two Manifests that end at the same time, the one
// with the lower name deletes the objects that both have. The inventory is read without a cache, as
// an entry is written before its object.
func (r *Reconciler) withoutShared(
	ctx context.Context, manifest *v1beta2.Manifest, inventory []v1beta2.Object,
) (mine, theirs []v1beta2.Object, err error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, kymaOf(manifest))
	if err != nil {
		return nil, nil, err
	}

	mine = inventory
	definitions, _ := split(inventory, isDefinition)
	for i := range manifests {
		other := &manifests[i]
		if other.Name == manifest.Name {
			continue
		}

		if len(without(definitions, other.Status.Inventory)) < len(definitions) {
			theirs = append(theirs, other.Status.Inventory...)
		}

		later := !other.DeletionTimestamp.IsZero() && !manifest.DeletionTimestamp.IsZero() && other.Name > manifest.Name
		if !later {
			mine = without(mine, other.Status.Inventory)
		}
	}
	return mine, theirs, nil
}

func split(all []v1beta2.Object, condition func(v1beta2.Object) bool) (met, others []v1beta2.Object) {
	for _, o := range all {
		if condition(o) {
			met = append(met, o)
		} else {
			others = append(others, o)
		}
	}
	return met, others
}

func isDefinition(o v1beta2.Object) bool {
	return o.Group == "apiextensions.k8s.io" && o.Kind == "CustomResourceDefinition"
}

// kindsOf returns the kinds that the definitions define in the runtime.
func kindsOf(
	ctx context.Context, there *skr.Runtime, definitions []v1beta2.Object,
) (kinds []schema.GroupVersionKind, err error) {
	for _, definition := range objectsOf(definitions) {
		err := there.Get(ctx, client.ObjectKeyFromObject(definition), definition)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err != nil || definition.GetLabels()[skr.ManagedByLabel] != skr.FieldOwner {
			continue // It stays, and so do its objects.
		}

		kind, err := there.RESTMapper().KindFor(schema.ParseGroupResource(definition.GetName()).WithVersion(""))
		if meta.IsNoMatchError(err) {
			continue // It is not served.
		}
		if err != nil {
			return nil, err
		}

		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// findInstance names an object of the kinds, empty if there is none. A user's object is the user's
// to delete: the module ends when it is gone. The same holds for an object of another module,
// unless that module has the definition, too.
func (p *plan) findInstance(ctx context.Context, there *skr.Runtime) (string, error) {
	const page = 500
	for _, kind := range p.kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)

		err := there.List(ctx, list, client.Limit(page))
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return "", err
		}

		for i := range list.Items {
			key := client.ObjectKeyFromObject(&list.Items[i])
			entry := v1beta2.Object{Group: kind.Group, Kind: kind.Kind, Namespace: key.Namespace, Name: key.Name}
			if len(without([]v1beta2.Object{entry}, p.theirs)) > 0 {
				return fmt.Sprintf("waiting for the end of %s %s", kind.Kind, key), nil
			}
		}
	}
	return "", nil
}
