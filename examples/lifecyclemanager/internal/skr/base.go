package skr

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/config/crd"
)

// Namespace has the Kyma and the catalog of a runtime.
const Namespace = "kyma-system"

// Prepare applies the definitions and the namespace that the operator needs in a runtime, once for
// each connection. A namespace that exists is left alone, also by [Runtime.Clean].
func (r *Runtime) Prepare(ctx context.Context) error {
	if r.prepared.Load() {
		return nil
	}
	objects, err := base()
	if err != nil {
		return err
	}
	if err := r.ApplyAll(ctx, objects); err != nil {
		return err
	}
	r.prepared.Store(true)
	return nil
}

// PrepareAgain makes the next Prepare apply everything.
func (r *Runtime) PrepareAgain() { r.prepared.Store(false) }

// Clean deletes the objects that Prepare has applied, and reports whether none is left. With the
// definitions go the Kyma and the catalog.
func (r *Runtime) Clean(ctx context.Context) (clean bool, err error) {
	r.PrepareAgain()
	objects, err := base()
	if err != nil {
		return false, err
	}
	left, err := r.DeleteAll(ctx, objects)
	return err == nil && len(left) == 0, err
}

func base() ([]*unstructured.Unstructured, error) {
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(Namespace)
	namespace.SetAnnotations(map[string]string{onlyCreate: "true"})
	crds, err := crd.ForRuntimes()
	return append(crds, namespace), err
}
