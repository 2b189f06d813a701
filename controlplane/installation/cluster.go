package installation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// cluster reads the objects of a runtime.
type cluster struct {
	client.Client

	id  core.RuntimeID
	log *slog.Logger
}

func (c *cluster) wrap(err error, what, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("installation: runtime %q: %s %s: %w", c.id, what, name, err)
}

// get returns nil when there is no such object.
func (c *cluster) get(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	live, err := serverside.Get(ctx, c, client.ObjectKeyFromObject(object), live)
	if err != nil || live == nil {
		return nil, c.wrap(err, "get "+object.GetKind(), object.GetName())
	}
	live.SetGroupVersionKind(object.GroupVersionKind()) // A hostile API server may answer another one.
	return live, nil
}

func (c *cluster) getInto(
	ctx context.Context, object *unstructured.Unstructured, into **unstructured.Unstructured,
) func() error {
	return func() (err error) {
		*into, err = c.get(ctx, object)
		return err
	}
}

// metadata returns nil when there is no such object.
func (c *cluster) metadata(
	ctx context.Context, object *unstructured.Unstructured,
) (*metav1.PartialObjectMetadata, error) {
	live, err := ownership.Metadata(ctx, c, object.GroupVersionKind(), client.ObjectKeyFromObject(object))
	return live, c.wrap(err, "get "+object.GetKind(), object.GetName())
}

func (c *cluster) decode(object *unstructured.Unstructured, typed any) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
	return c.wrap(err, "read "+object.GetKind(), object.GetName())
}

// apply creates an object, or corrects the one that this visit has read. It returns the object as
// it is then. Fields that others have added stay.
func (v *visit) apply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := v.found.live(object)
	applied, err := ownership.Apply(ctx, v, object, live, fieldOwner)
	if live == nil || !apierrors.IsInvalid(err) {
		return applied, v.inRuntime(err)
	}
	// An object is sound if an API server refuses only to create it again.
	if !apierrors.IsAlreadyExists(v.Create(ctx, object.DeepCopy(), client.DryRunAll)) {
		return nil, v.inRuntime(err)
	}

	// Others have set an immutable field, or one that excludes a field of ours.
	v.log.WarnContext(ctx, "cannot correct an object, so the installer replaces it", slog.String("kind", object.GetKind()),
		slog.String("name", object.GetName()), slog.String("error", remote.Text(err.Error())))
	if err := v.removeRead(ctx, object, live); err != nil {
		return nil, err
	}
	applied, err = ownership.Apply(ctx, v, object, nil, fieldOwner)
	return applied, v.inRuntime(err)
}

func (c *cluster) inRuntime(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("installation: runtime %q: %w", c.id, err)
}

// errSuccessor means that the object is not the one that was read. The next visit decides which
// installer owns it.
var errSuccessor = errors.New("another client has deleted it and created it again")

// removeRead removes the object that this visit has read, if it still may be changed.
func (v *visit) removeRead(ctx context.Context, object *unstructured.Unstructured, read client.Object) error {
	live, err := v.metadata(ctx, object)
	if err != nil || live == nil {
		return err
	}
	if live.GetUID() != read.GetUID() {
		return v.wrap(errSuccessor, "replace "+object.GetKind(), object.GetName())
	}
	if err := v.checkOwners([]client.Object{live}); err != nil {
		return err
	}
	return v.wrap(ownership.DeleteUnchanged(ctx, v, live), "replace "+object.GetKind(), object.GetName())
}

// applyAll applies objects in parallel, so none of them may need another one.
func (v *visit) applyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return each(objects, func(object *unstructured.Unstructured) error {
		_, err := v.apply(ctx, object)
		return err
	})
}

// remove deletes the objects that this installer may change, one after the other, and returns those
// that a finalizer still holds.
func (v *visit) remove(
	ctx context.Context, objects ...*unstructured.Unstructured,
) (held []*unstructured.Unstructured, err error) {
	return v.removeIf(ctx, v.mayWrite, objects...)
}

func (v *visit) removeIf(
	ctx context.Context, may func(live client.Object) bool, objects ...*unstructured.Unstructured,
) (held []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		live, err := v.metadata(ctx, object)
		if err != nil {
			return nil, err
		}
		if live == nil || !may(live) {
			continue
		}

		isHeld, err := v.removeOne(ctx, live)
		if err != nil {
			return nil, v.wrap(err, "delete "+object.GetKind(), object.GetName())
		}
		if isHeld {
			held = append(held, object)
		}
	}
	return held, nil
}

// removeOne reports whether a finalizer holds the object.
func (v *visit) removeOne(ctx context.Context, live *metav1.PartialObjectMetadata) (held bool, err error) {
	err = ownership.Delete(ctx, v, live)
	conflict := apierrors.IsConflict(err) // Also of a namespace that is being deleted.
	if err != nil && !conflict {
		return false, err
	}

	kind, key := live.GroupVersionKind(), client.ObjectKeyFromObject(live)
	left, getErr := ownership.Metadata(ctx, v, kind, key)
	if getErr != nil {
		return false, getErr
	}
	if left == nil {
		return false, nil
	}
	if conflict && left.DeletionTimestamp == nil {
		return false, err // A successor may be foreign: the next call decides.
	}
	return left.UID == live.UID, nil
}

func (v *visit) removeAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return each(objects, func(object *unstructured.Unstructured) error {
		_, err := v.remove(ctx, object)
		return err
	})
}

func each(objects []*unstructured.Unstructured, task func(*unstructured.Unstructured) error) error {
	tasks := make([]func() error, len(objects))
	for n, object := range objects {
		tasks[n] = func() error { return task(object) }
	}
	return together(tasks...)
}

// together runs tasks at the same time, and joins their errors in the order of the tasks.
func together(tasks ...func() error) error {
	var running sync.WaitGroup
	failed := make([]error, len(tasks))
	for n, task := range tasks {
		running.Go(func() { failed[n] = task() })
	}
	running.Wait()
	return errors.Join(failed...)
}
