package skr

import (
	"context"
	"slices"
	"sort"
	"strings"

	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

// KeptFor is the annotation of a Namespace that was not deleted, with the name of an object in it.
const KeptFor = "operator.kyma-project.io/kept-for"

// DeleteAll deletes objects that ApplyAll has made, in the opposite order, and returns those that
// are not gone yet. It does not wait. Call it again until none is left.
func (r *Runtime) DeleteAll(
	ctx context.Context, objects []*unstructured.Unstructured,
) (left []*unstructured.Unstructured, err error) {
	local, err := r.Local(ctx)
	if err != nil {
		return nil, err
	}

	objects = slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return protects(o, local)
	})
	sort.Sort(sort.Reverse(ssa.SortableUnstructureds(objects)))

	for part := range slices.Chunk(objects, batch) {
		gone := make(map[*unstructured.Unstructured]*bool, len(part))
		for _, object := range part {
			gone[object] = new(bool)
		}

		err := each(part, func(object *unstructured.Unstructured) (err error) {
			*gone[object], err = r.deleteObject(ctx, object)
			return err
		})
		if err != nil {
			return nil, err
		}

		for _, object := range part {
			if !*gone[object] {
				left = append(left, object)
			}
		}
	}
	return left, nil
}

// protects reports whether no module may delete an object, because the Kyma or the operator needs
// it.
func protects(object *unstructured.Unstructured, local bool) bool {
	if utils.IsNamespace(object) {
		return local || object.GetName() == Namespace
	}
	return utils.IsCRD(object) && strings.HasSuffix(object.GetName(), "."+v1beta2.GroupVersion().Group)
}

// deleteObject reports whether the object is gone, or does not belong to the operator.
func (r *Runtime) deleteObject(ctx context.Context, object *unstructured.Unstructured) (gone bool, err error) {
	if utils.IsNamespace(object) {
		return r.DeleteNamespace(ctx, object)
	}

	live, err := r.readLive(ctx, object)
	if err != nil || live == nil || live.Labels[ManagedByLabel] != FieldOwner {
		return err == nil, err
	}

	return r.deleteLive(ctx, live)
}

// DeleteNamespace deletes a Namespace of the operator. A Namespace with an object of others stays:
// it loses the label, and an annotation names the object. DeleteNamespace reports whether the
// Namespace no longer belongs to the operator.
func (r *Runtime) DeleteNamespace(ctx context.Context, object *unstructured.Unstructured) (gone bool, err error) {
	live, err := r.readLive(ctx, object)
	if err != nil || live == nil || live.Labels[ManagedByLabel] != FieldOwner {
		return err == nil, err
	}
	if live.DeletionTimestamp != nil {
		return false, nil
	}

	guest, err := installation.FindGuest(ctx, r.direct, object.GetName(), isLock)
	if err != nil {
		return false, err
	}
	if guest != "" {
		return true, r.keepNamespace(ctx, live, guest)
	}

	return r.deleteLive(ctx, live)
}

// deleteLive deletes only the object that was read, and not a successor with the same name.
func (r *Runtime) deleteLive(ctx context.Context, live *metav1.PartialObjectMetadata) (gone bool, err error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(live.GroupVersionKind())
	object.SetNamespace(live.Namespace)
	object.SetName(live.Name)

	// The client decodes the answer, which may be an object of any kind.
	err = r.Delete(ctx, object, client.Preconditions{UID: new(live.UID)},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}

	left, err := r.readLive(ctx, object)
	return err == nil && left == nil, err
}

// readLive returns the metadata of an object, nil if there is none. An object without its
// definition is gone as well.
func (r *Runtime) readLive(
	ctx context.Context, object *unstructured.Unstructured,
) (*metav1.PartialObjectMetadata, error) {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(object.GroupVersionKind())

	err := r.Get(ctx, client.ObjectKeyFromObject(object), live)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	return live, err
}

// isLock reports whether an object is a lock of a manager that has ended. It has no content.
func isLock(kind string, _ *metav1.PartialObjectMetadata) bool { return kind == "Lease" }

// keepNamespace leaves a Namespace to its users. Its annotation names the object that is there.
func (r *Runtime) keepNamespace(ctx context.Context, live *metav1.PartialObjectMetadata, guest string) error {
	ctrl.LoggerFrom(ctx).Info("a Namespace of a module stays, because it contains objects of other owners",
		"namespace", live.Name, "object", guest)
	before := live.DeepCopy()
	delete(live.Labels, ManagedByLabel)
	delete(live.Annotations, ModuleMark)
	metav1.SetMetaDataAnnotation(&live.ObjectMeta, KeptFor, guest)

	return r.Patch(ctx, live, After(before))
}
