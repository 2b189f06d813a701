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

// remove removes the objects and then the finalizer. Without a runtime there is nothing to remove,
// and a runtime that does not answer for GiveUp counts as gone.
func (r *Reconciler) remove(ctx context.Context, manifest *v1beta2.Manifest) (ctrl.Result, error) {
	awaited, err := r.removeObjects(ctx, manifest)
	if errors.Is(err, runtimes.ErrGone) || skr.GaveUp(manifest, r.GiveUp, err) || err == nil && awaited == "" {
		return ctrl.Result{}, skr.Release(ctx, r.Client, manifest, Finalizer)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	status := manifest.Status
	status.State, status.Message = v1beta2.Deleting, awaited
	return ctrl.Result{RequeueAfter: skr.Backoff(*manifest.DeletionTimestamp)}, r.report(ctx, manifest, status)
}

func (r *Reconciler) removeObjects(ctx context.Context, manifest *v1beta2.Manifest) (awaited string, err error) {
	there, err := r.Connect(ctx, client.ObjectKeyFromObject(manifest), kymaOf(manifest))
	if err != nil {
		return "", err
	}
	left, awaited, err := r.removeAll(ctx, there, manifest, manifest.Status.Inventory)
	if err == nil && awaited == "" && len(left) > 0 {
		awaited = ending(left[0])
	}
	return awaited, err
}

// removeAll deletes objects of the inventory in three phases: the custom resources of the module,
// then its other objects with its manager, then the definitions. The manager takes the finalizers
// off, so it must not end before them. Objects of another Manifest are released. It returns the
// objects that are not gone yet, and the custom resource that the next phase awaits.
func (r *Reconciler) removeAll(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest, inventory []v1beta2.Object,
) (left []*unstructured.Unstructured, awaited string, err error) {
	mine, err := r.withoutShared(ctx, manifest, inventory)
	if err != nil {
		return nil, "", err
	}
	definitions, rest := split(mine, isDefinition)
	kinds, err := kindsOf(ctx, there, definitions)
	if err != nil {
		return nil, "", err
	}
	customs, others := split(rest, func(o v1beta2.Object) bool {
		return slices.ContainsFunc(kinds, func(kind schema.GroupVersionKind) bool {
			return kind.Group == o.Group && kind.Kind == o.Kind
		})
	})
	if left, err = there.DeleteAll(ctx, objectsOf(customs)); err != nil {
		return nil, "", err
	}
	if awaited, err = instance(ctx, there, kinds); err != nil || awaited != "" {
		return objectsOf(mine), awaited, err
	}
	for _, phase := range [][]v1beta2.Object{others, definitions} {
		if len(left) > 0 {
			left = append(left, objectsOf(phase)...)
			continue
		}
		if left, err = there.DeleteAll(ctx, objectsOf(phase)); err != nil {
			return nil, "", err
		}
	}
	return left, "", nil
}

// withoutShared returns the objects that no other Manifest of the runtime has. Of two Manifests
// that end at the same time, the one with the lower name deletes the objects that both have. The
// inventory is read without a cache, as an entry is written before its object.
func (r *Reconciler) withoutShared(
	ctx context.Context, manifest *v1beta2.Manifest, inventory []v1beta2.Object,
) ([]v1beta2.Object, error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, kymaOf(manifest))
	if err != nil {
		return nil, err
	}
	mine := inventory
	for i := range manifests {
		other := &manifests[i]
		later := !other.DeletionTimestamp.IsZero() && !manifest.DeletionTimestamp.IsZero() && other.Name > manifest.Name
		if other.Name != manifest.Name && !later {
			mine = without(mine, other.Status.Inventory)
		}
	}
	return mine, nil
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

// instance names an object of the kinds, empty if there is none. A user's object is the user's to
// delete: the module ends when it is gone.
func instance(ctx context.Context, there *skr.Runtime, kinds []schema.GroupVersionKind) (string, error) {
	for _, kind := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		err := there.List(ctx, list, client.Limit(1))
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if len(list.Items) > 0 {
			key := client.ObjectKeyFromObject(&list.Items[0])
			return fmt.Sprintf("waiting for the end of %s %s", kind.Kind, key), nil
		}
	}
	return "", nil
}
