package installation

import (
	"context"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// cluster is the API server of one runtime, with errors and log lines that name the runtime.
type cluster struct {
	client.Client

	id  core.RuntimeID
	log *slog.Logger
}

// wrapRequest names the request that has failed. It returns nil for no error.
func (c *cluster) wrapRequest(err error, what, name string) error {
	if err != nil {
		return fmt.Errorf("installation: runtime %q: %s %s: %w", c.id, what, name, err)
	}
	return nil
}

// wrapRuntime names the runtime only, for an error that names its request.
func (c *cluster) wrapRuntime(err error) error {
	if err != nil {
		return fmt.Errorf("installation: runtime %q: %w", c.id, err)
	}
	return nil
}

// readObject returns nil for a missing object.
func (c *cluster) readObject(
	ctx context.Context, object *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	live, err := serverside.Get(ctx, c, client.ObjectKeyFromObject(object), live)
	if err != nil || live == nil {
		return nil, c.wrapRequest(err, "get "+object.GetKind(), object.GetName())
	}

	live.SetGroupVersionKind(object.GroupVersionKind()) // A hostile API server may answer another kind.
	return live, nil
}

// readingObject returns a task that reads an object, for [together].
func (c *cluster) readingObject(
	ctx context.Context, object *unstructured.Unstructured, into **unstructured.Unstructured,
) func() error {
	return func() (err error) {
		*into, err = c.readObject(ctx, object)
		return err
	}
}

// readMetadata returns nil for a missing object.
func (c *cluster) readMetadata(
	ctx context.Context, object *unstructured.Unstructured,
) (*metav1.PartialObjectMetadata, error) {
	live, err := ownership.Metadata(ctx, c, object.GroupVersionKind(), client.ObjectKeyFromObject(object))
	return live, c.wrapRequest(err, "get "+object.GetKind(), object.GetName())
}

// decodeInto converts an object of a runtime, which may be malformed.
func (c *cluster) decodeInto(object *unstructured.Unstructured, typed any) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
	return c.wrapRequest(err, "read "+object.GetKind(), object.GetName())
}
