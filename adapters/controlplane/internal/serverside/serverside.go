// Package serverside is how this module writes objects: by server-side apply, each package as one field owner.
package serverside

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Content is what an object says that is its author's to say. A status is its controller's, even an empty one. The object is a pointer to
// a struct.
func Content(object any) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}

	delete(content, "status")

	return content, nil
}

// Apply creates an object or corrects what owner wants of it, whoever changed that, and leaves alone what others have added beside. What owner
// said before and does not say any more is removed. The object must name its kind, and stays as it is.
func Apply(ctx context.Context, c client.Client, object *unstructured.Unstructured, owner string) error {
	// The answer is written into what is applied.
	applied := client.ApplyConfigurationFromUnstructured(object.DeepCopy())

	if err := c.Apply(ctx, applied, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}

	return nil
}
