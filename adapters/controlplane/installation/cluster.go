package installation

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// cluster is the runtime, as this package writes to it.
type cluster struct {
	client.Client

	id  core.RuntimeID
	log *slog.Logger
}

func (c *cluster) wrap(err error, what, name string) error {
	return fmt.Errorf("installation: runtime %q: %s %s: %w", c.id, what, name, err)
}

// get returns nil when there is no such object.
func (c *cluster) get(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())

	err := c.Get(ctx, client.ObjectKeyFromObject(object), live)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nothing there is what was asked for.
	}

	if err != nil {
		return nil, c.wrap(err, "get "+object.GetKind(), object.GetName())
	}

	return live, nil
}

func (c *cluster) decode(object *unstructured.Unstructured, typed any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return c.wrap(err, "read "+object.GetKind(), object.GetName())
	}

	return nil
}

// apply creates an object or corrects what this package wants of it, and leaves the rest of it alone.
func (c *cluster) apply(ctx context.Context, object *unstructured.Unstructured) error {
	err := c.tryApply(ctx, object)
	if !immutable(err) {
		return err
	}

	// Somebody made it in a way that can not be changed. Whatever it was for, it was not for us.
	c.log.WarnContext(ctx, "object can not be corrected, it is replaced", slog.String("kind", object.GetKind()),
		slog.String("name", object.GetName()), slog.Any("error", err))

	if _, err := c.remove(ctx, []*unstructured.Unstructured{object}); err != nil {
		return err
	}

	return c.tryApply(ctx, object)
}

func (c *cluster) tryApply(ctx context.Context, object *unstructured.Unstructured) error {
	if err := serverside.Apply(ctx, c, object, FieldOwner); err != nil {
		return fmt.Errorf("installation: runtime %q: %w", c.id, err)
	}

	return nil
}

// immutable recognises what API servers say of a field that must not change (apimachinery/pkg/api/validation) and of a roleRef.
func immutable(err error) bool {
	if !apierrors.IsInvalid(err) {
		return false
	}

	text := err.Error()

	return strings.Contains(text, "immutable") || strings.Contains(text, "cannot change roleRef")
}

// applyNamespace leaves one alone that somebody else has made. It reports whether things can be put into it.
func (c *cluster) applyNamespace(ctx context.Context, namespace *unstructured.Unstructured) (usable bool, err error) {
	live, err := c.get(ctx, namespace)

	switch {
	case err != nil:
		return false, err
	case live == nil:
		// Not applied: who comes first is the one who made it.
		if err := c.Create(ctx, namespace.DeepCopy(), client.FieldOwner(FieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
			return false, c.wrap(err, "create Namespace", namespace.GetName())
		}

		return true, nil
	case live.GetDeletionTimestamp() != nil:
		return false, nil
	case ours(live):
		return true, c.tryApply(ctx, namespace) // Never replaced: customers may have put something there.
	default:
		return true, nil
	}
}

func ours(namespace *unstructured.Unstructured) bool {
	return namespace.GetAnnotations()[annotationCreatedBy] == FieldOwner
}

// remove deletes objects, one after the other, and returns those that are still there: something holds them.
func (c *cluster) remove(ctx context.Context, objects []*unstructured.Unstructured) (held []*unstructured.Unstructured, err error) {
	for _, object := range objects {
		err := c.Delete(ctx, object.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if apierrors.IsNotFound(err) {
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
