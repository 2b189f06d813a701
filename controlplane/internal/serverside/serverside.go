// Package serverside applies objects by server-side apply.
package serverside

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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

// Apply creates an object, or corrects the fields that owner has applied. Fields of other owners
// stay. Fields that owner has applied before, and that the object does not have, are removed. The
// object must name its kind, and is not changed.
func Apply(ctx context.Context, c client.Client, object *unstructured.Unstructured, owner string) error {
	_, err := Applied(ctx, c, object, owner)
	return err
}

// Applied is Apply, and returns the object as the API server has it then.
func Applied(
	ctx context.Context, c client.Client, object *unstructured.Unstructured, owner string,
) (*unstructured.Unstructured, error) {
	live := object.DeepCopy() // The client writes the response into its argument.
	applied := client.ApplyConfigurationFromUnstructured(live)
	if err := c.Apply(ctx, applied, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return live, nil
}
