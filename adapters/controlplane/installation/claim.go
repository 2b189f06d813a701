package installation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrOwned means that another installer has installed the agent in a runtime. Nothing was changed
// there.
var ErrOwned = errors.New("another installer has installed the agent in runtime")

// annotationInstalledBy has the owner of an installation.
const annotationInstalledBy = "operator.kyma-project.io/installed-by"

// checkOwner refuses a runtime with an object of another owner. Objects without the annotation, and
// nil, belong to every owner.
func (i *Installer) checkOwner(in *cluster, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		if object == nil {
			continue
		}
		owner := object.GetAnnotations()[annotationInstalledBy]
		if owner != "" && owner != i.owner() && !slices.Contains(i.opts.FormerOwners, owner) {
			return fmt.Errorf("%w %q: %s %s is of %.200q, and this is %.200q",
				ErrOwned, in.id, object.GetKind(), object.GetName(), owner, i.owner())
		}
	}
	return nil
}

// owner is the identity of this installer in every runtime.
func (i *Installer) owner() string {
	if i.opts.Owner == "" {
		return i.controlPlane
	}
	return i.opts.Owner
}

// own marks an object as one of this installer.
func (i *Installer) own(object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[annotationInstalledBy] = i.owner()
	object.SetAnnotations(annotations)
}

// claim creates the ConfigMap with the managers, unless there is one. Of two installers that begin
// at the same time, only one can create it.
func (i *Installer) claim(ctx context.Context, in *cluster, wanted, live *unstructured.Unstructured) error {
	if live != nil {
		return nil
	}

	err := in.Create(ctx, wanted.DeepCopy(), client.FieldOwner(i.opts.FieldOwner))
	if !apierrors.IsAlreadyExists(err) {
		return in.wrap(err, "create "+wanted.GetKind(), wanted.GetName())
	}

	other, err := in.get(ctx, wanted)
	if err != nil {
		return err
	}
	return i.checkOwner(in, other)
}
