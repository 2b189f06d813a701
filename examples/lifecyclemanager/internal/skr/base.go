package skr

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/config/crd"
)

// Namespace contains the Kyma and the catalog of a runtime.
const Namespace = "kyma-system"

// Prepare applies the definitions and the namespace that the operator needs in a runtime, once for
// each connection. A namespace that exists is left alone, also by [Runtime.Clean].
func (r *Runtime) Prepare(ctx context.Context) error {
	if r.state.prepared.Load() {
		return nil
	}

	objects, err := base()
	if err != nil {
		return err
	}

	local, err := r.Local(ctx)
	if err != nil {
		return err
	}

	if local {
		objects = objects[len(objects)-1:] // The definitions are there, and the administrator's.
	}

	if err := r.ApplyAll(ctx, operatorItself, objects); err != nil {
		return err
	}

	r.state.prepared.Store(true)
	return nil
}

// PrepareAgain makes the next Prepare apply everything.
func (r *Runtime) PrepareAgain() { r.state.prepared.Store(false) }

// Clean deletes the objects that Prepare has applied, and reports whether none is left. The Kyma
// and the catalog are deleted with the definitions. The namespace stays if it contains other
// objects. In the control plane the definitions stay, because they hold the Kymas of all runtimes.
func (r *Runtime) Clean(ctx context.Context) (clean bool, err error) {
	r.PrepareAgain()
	local, err := r.Local(ctx)
	if err != nil {
		return false, err
	}
	if local {
		return r.cleanLocal(ctx)
	}

	objects, err := base()
	if err != nil {
		return false, err
	}

	// The namespace comes last: an object that is still there would keep it.
	for _, object := range objects {
		gone, err := r.deleteObject(ctx, object)
		if err != nil || !gone {
			return false, err
		}
	}
	return true, nil
}

// cleanLocal deletes the Kyma that users edit, and the catalog.
func (r *Runtime) cleanLocal(ctx context.Context) (clean bool, err error) {
	kymas := &v1beta2.KymaList{}
	templates := &v1beta2.ModuleTemplateList{}
	here := client.InNamespace(Namespace)

	err = errors.Join(r.List(ctx, kymas, here), r.List(ctx, templates, here),
		r.DeleteAllOf(ctx, &v1beta2.Kyma{}, here), r.DeleteAllOf(ctx, &v1beta2.ModuleTemplate{}, here))
	return len(kymas.Items)+len(templates.Items) == 0, err
}

func base() ([]*unstructured.Unstructured, error) {
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(Namespace)
	namespace.SetAnnotations(map[string]string{OnlyCreate: "true"})
	crds, err := crd.ForRuntimes()

	return append(crds, namespace), err
}
