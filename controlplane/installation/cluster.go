package installation

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

type cluster struct {
	client.Client

	id  core.RuntimeID
	log *slog.Logger
}

func (c *cluster) wrap(err error, what, name string) error {
	return option.Unless(err == nil, "installation: runtime %q: %s %s: %w", c.id, what, name, err)
}

// get returns nil when there is no such object.
func (c *cluster) get(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	live, err := serverside.Get(ctx, c, client.ObjectKeyFromObject(object), live)
	return live, c.wrap(err, "get "+object.GetKind(), object.GetName())
}

func (c *cluster) getInto(
	ctx context.Context, object *unstructured.Unstructured, into **unstructured.Unstructured,
) func() error {
	return func() (err error) {
		*into, err = c.get(ctx, object)
		return err
	}
}

func (c *cluster) decode(object *unstructured.Unstructured, typed any) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
	return c.wrap(err, "read "+object.GetKind(), object.GetName())
}

// apply returns the object as it is then. Fields that others have added stay.
func (c *cluster) apply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live, err := c.tryApply(ctx, object)
	// It is sound if an API server refuses only to create it again.
	if !apierrors.IsInvalid(err) || !apierrors.IsAlreadyExists(c.Create(ctx, object.DeepCopy(), client.DryRunAll)) {
		return live, err
	}
	// Others have set an immutable field, or one that excludes a field of ours.
	c.log.WarnContext(ctx, "object cannot be corrected and is replaced", slog.String("kind", object.GetKind()),
		slog.String("name", object.GetName()), slog.String("error", remote.Text(err.Error())))
	if _, err := c.remove(ctx, object); err != nil {
		return nil, err
	}
	return c.tryApply(ctx, object)
}

func (c *cluster) tryApply(
	ctx context.Context, object *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	live, err := serverside.Apply(ctx, c, object, fieldOwner)
	return live, option.Unless(err == nil, "installation: runtime %q: %w", c.id, err)
}

// applyAll applies objects at the same time. None may need another one.
func (c *cluster) applyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return each(objects, func(object *unstructured.Unstructured) error {
		_, err := c.apply(ctx, object)
		return err
	})
}

// remove deletes objects, one after the other, and returns those that a finalizer still holds.
func (c *cluster) remove(
	ctx context.Context, objects ...*unstructured.Unstructured,
) (held []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		err := c.Delete(ctx, object.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if serverside.IsAbsent(err) {
			continue
		}
		// A namespace that is being deleted conflicts.
		if err != nil && !apierrors.IsConflict(err) {
			return nil, c.wrap(err, "delete "+object.GetKind(), object.GetName())
		}
		live, err := c.get(ctx, object)
		if err != nil {
			return nil, err
		}
		if live != nil {
			held = append(held, object)
		}
	}
	return held, nil
}

func (c *cluster) removeAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	return each(objects, func(object *unstructured.Unstructured) error {
		_, err := c.remove(ctx, object)
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
