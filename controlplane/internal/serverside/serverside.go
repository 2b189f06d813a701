// Package serverside applies objects by server-side apply and reads them.
package serverside

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Content converts an object, a pointer to a struct, to a map without its status.
func Content(object any) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}

	delete(content, "status")
	return content, nil
}

// ApplyTyped is [Apply] for an object of a Go type, which need not name its kind.
func ApplyTyped(
	ctx context.Context, c client.Client, object client.Object, kind schema.GroupVersionKind, owner string,
) error {
	content, err := Content(object)
	if err != nil {
		return err
	}

	applied := &unstructured.Unstructured{Object: content}
	applied.SetGroupVersionKind(kind)
	_, err = Apply(ctx, c, applied, owner)

	return err
}

// Apply creates an object, or corrects the fields that owner has applied. Fields of other owners
// stay. Fields that owner has applied before but that the object does not contain are removed. The
// object must name its kind and is not changed. Apply returns the resulting object from the API
// server.
func Apply(
	ctx context.Context, c client.Client, object *unstructured.Unstructured, owner string,
) (*unstructured.Unstructured, error) {
	live := object.DeepCopy() // The client writes the response into its argument.
	applied := client.ApplyConfigurationFromUnstructured(live)
	if err := c.Apply(ctx, applied, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return live, nil
}

// Get reads an object into the given object and returns it. It returns nil if the object does not
// exist.
func Get[O client.Object](ctx context.Context, reader client.Reader, key client.ObjectKey, into O) (O, error) {
	if err := reader.Get(ctx, key, into); err != nil {
		var none O
		return none, IgnoreAbsent(err)
	}
	return into, nil
}

// IgnoreAbsent returns nil for an error for which [IsAbsent] is true, and any other error as it is.
func IgnoreAbsent(err error) error {
	if IsAbsent(err) {
		return nil
	}
	return err
}

// IsAbsent reports whether an API server has no such object. A 404 with a page from a proxy does
// not count.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}
