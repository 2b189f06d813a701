package installation

import (
	"context"
	"errors"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// writer changes objects in a runtime, each only if it is the object that this visit has read and
// may change.
type writer struct {
	*cluster

	rights rights
}

// applyOne creates an object, or corrects the one that this visit has read. It returns the object
// as it is then. Fields that others have added stay.
func (w *writer) applyOne(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := w.rights.found.liveOf(object)
	applied, err := ownership.Apply(ctx, w, object, live, fieldOwner)
	if live == nil || !apierrors.IsInvalid(err) {
		return applied, w.wrapRuntime(err)
	}

	// An object is sound if an API server refuses only to create it again.
	if !apierrors.IsAlreadyExists(w.Create(ctx, object.DeepCopy(), client.DryRunAll)) {
		return nil, w.wrapRuntime(err)
	}

	// Others have set an immutable field, or one that excludes a field of ours.
	w.log.WarnContext(ctx, "cannot correct an object, so the installer replaces it",
		slog.String("kind", object.GetKind()), slog.String("name", object.GetName()),
		slog.String("error", remote.Text(err.Error())))
	if err := w.removeRead(ctx, object, live); err != nil {
		return nil, err
	}
	applied, err = ownership.Apply(ctx, w, object, nil, fieldOwner)
	return applied, w.wrapRuntime(err)
}

// applyingObject returns a task that applies an object, for [together].
func (w *writer) applyingObject(
	ctx context.Context, object *unstructured.Unstructured, into **unstructured.Unstructured,
) func() error {
	return func() (err error) {
		*into, err = w.applyOne(ctx, object)
		return err
	}
}

// applyAll applies objects in parallel, so no object may need another object of the list.
func (w *writer) applyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return forEach(objects, func(object *unstructured.Unstructured) error {
		_, err := w.applyOne(ctx, object)
		return err
	})
}

// errSuccessor means that the object is not the one that was read. The next visit decides which
// installer owns it.
var errSuccessor = errors.New("another client has deleted it and created it again")

// removeRead removes the object that this visit has read, if it still may be changed.
func (w *writer) removeRead(ctx context.Context, object *unstructured.Unstructured, read client.Object) error {
	live, err := w.readMetadata(ctx, object)
	if err != nil || live == nil {
		return err
	}

	if live.GetUID() != read.GetUID() {
		return w.wrapRequest(errSuccessor, "replace "+object.GetKind(), object.GetName())
	}
	if err := w.rights.checkOwners([]client.Object{live}); err != nil {
		return err
	}
	return w.wrapRequest(ownership.DeleteUnchanged(ctx, w, live), "replace "+object.GetKind(), object.GetName())
}

// remove deletes the objects that this installer may change, in their order. It returns the objects
// that a finalizer still holds.
func (w *writer) remove(
	ctx context.Context, objects ...*unstructured.Unstructured,
) (held []*unstructured.Unstructured, err error) {
	return w.removeIf(ctx, w.rights.mayWrite, objects...)
}

// removeAll is like remove, in parallel. Objects that a finalizer holds are ignored.
func (w *writer) removeAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return forEach(objects, func(object *unstructured.Unstructured) error {
		_, err := w.remove(ctx, object)
		return err
	})
}

// removeIf is remove for the objects that may allows.
func (w *writer) removeIf(
	ctx context.Context, may func(live client.Object) bool, objects ...*unstructured.Unstructured,
) (held []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		live, err := w.readMetadata(ctx, object)
		if err != nil {
			return nil, err
		}
		if live == nil || !may(live) {
			continue
		}

		isHeld, err := w.removeOne(ctx, live)
		if err != nil {
			return nil, w.wrapRequest(err, "delete "+object.GetKind(), object.GetName())
		}
		if isHeld {
			held = append(held, object)
		}
	}
	return held, nil
}

// removeOne reports whether a finalizer holds the object.
func (w *writer) removeOne(ctx context.Context, live *metav1.PartialObjectMetadata) (held bool, err error) {
	deleteErr := ownership.Delete(ctx, w, live)
	isConflict := apierrors.IsConflict(deleteErr) // Also of a namespace that is being deleted.
	if deleteErr != nil && !isConflict {
		return false, deleteErr
	}

	left, err := ownership.Metadata(ctx, w, live.GroupVersionKind(), client.ObjectKeyFromObject(live))
	if err != nil {
		return false, err
	}
	if left == nil {
		return false, nil
	}
	if isConflict && left.DeletionTimestamp == nil {
		return false, deleteErr // A successor may be foreign: the next call decides.
	}
	return left.UID == live.UID, nil
}
