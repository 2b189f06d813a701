package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// errOwned means that another installer has installed the agent in a runtime. Nothing was changed
// there.
var errOwned error = &reasons.Error{Text: "another installer has installed the agent in runtime", Label: "owned"}

// errTaken has the same label: two runtimes have kubeconfigs of one cluster. Nothing was changed
// there.
var errTaken error = &reasons.Error{Text: "another runtime has its agent in the cluster of runtime", Label: "owned"}

// annotationRuntime has the ID of a runtime, on its ConfigMap. An agent with the keys of another
// runtime would speak for it.
const annotationRuntime = "operator.kyma-project.io/runtime-id"

// annotationInstalledBy has the owner of an installation.
const annotationInstalledBy = "operator.kyma-project.io/installed-by"

// checkOwner refuses a runtime with an object of another owner, or of another runtime. Objects
// without the annotations, and nil, belong to all of them.
func (i *Installer) checkOwner(in *cluster, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		if object == nil {
			continue
		}
		owner := ownerOf(object)
		if owner != "" && owner != i.owner() && !slices.Contains(i.opts.FormerOwners, owner) {
			return fmt.Errorf("%w %q: %s %s is of %.200q, and this is %.200q",
				errOwned, in.id, object.GetKind(), object.GetName(), owner, i.owner())
		}
		if id := object.GetAnnotations()[annotationRuntime]; id != "" && id != string(in.id) {
			return fmt.Errorf("%w %q: correct the kubeconfig, or delete %s %s/%s if runtime %.80q is gone",
				errTaken, in.id, object.GetKind(), object.GetNamespace(), object.GetName(), id)
		}
	}
	return nil
}

func ownerOf(object *unstructured.Unstructured) string {
	return object.GetAnnotations()[annotationInstalledBy]
}

// owner is the identity of this installer in every runtime.
func (i *Installer) owner() string { return cmp.Or(i.opts.Owner, i.controlPlane) }

func annotate(object *unstructured.Unstructured, name, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[name] = value
	object.SetAnnotations(annotations)
}

// claim makes the ConfigMap with the managers one of this installer, before any other object is
// written. An API server lets only one of two installers create it, or change the same version of
// it. live is the ConfigMap as it was read, nil if there was none.
func (i *Installer) claim(ctx context.Context, in *cluster, wanted, live *unstructured.Unstructured) error {
	err := i.tryClaim(ctx, in, wanted, live)
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		if live, err = in.get(ctx, wanted); err == nil {
			err = i.checkOwner(in, live)
		}
		if err != nil {
			return err
		}
		err = i.tryClaim(ctx, in, wanted, live) // It may have changed for another reason.
	}
	return in.wrap(err, "claim ConfigMap", wanted.GetName())
}

// tryClaim fails if the ConfigMap is not as it was read.
func (i *Installer) tryClaim(ctx context.Context, in *cluster, wanted, live *unstructured.Unstructured) error {
	if live == nil {
		return in.Create(ctx, wanted.DeepCopy(), client.FieldOwner(fieldOwner))
	}
	if ownerOf(live) == i.owner() {
		return nil
	}
	claimed := live.DeepCopy()
	annotate(claimed, annotationInstalledBy, i.owner())
	unchanged := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
	return in.Patch(ctx, claimed, unchanged, client.FieldOwner(fieldOwner))
}
