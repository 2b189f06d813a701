package manifest

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// ownerOf returns the module of a Manifest as the owner of its objects.
func (r *Reconciler) ownerOf(manifest *v1beta2.Manifest) skr.Owner {
	return skr.Owner{
		Name: string(manifest.Spec.Module),
		Shares: func(ctx context.Context, object *unstructured.Unstructured, other string) (has, same bool, err error) {
			return r.sharesObject(ctx, manifest, object, v1beta2.ModuleName(other))
		},
	}
}

// sharesObject reports whether another module of the runtime has an object in its inventory, and
// whether its ModuleTemplate has the object with the same content.
func (r *Reconciler) sharesObject(
	ctx context.Context, manifest *v1beta2.Manifest, object *unstructured.Unstructured, other v1beta2.ModuleName,
) (has, same bool, err error) {
	manifests, err := v1beta2.ManifestsOf(ctx, r.Direct, kymaOf(manifest))
	if err != nil {
		return false, false, err
	}

	wanted := inventoryOf([]*unstructured.Unstructured{object})
	for i := range manifests {
		owner := &manifests[i]
		if owner.Spec.Module != other || len(without(wanted, owner.Status.Inventory)) > 0 {
			continue
		}

		template, err := r.storedTemplate(ctx, owner)
		if err != nil || template == nil {
			return true, false, err
		}

		theirs, err := contentOf(template)
		if err != nil {
			return true, false, err
		}

		same = slices.ContainsFunc(slices.Concat(theirs.objects, theirs.data), func(o *unstructured.Unstructured) bool {
			return equality.Semantic.DeepEqual(o.Object, object.Object)
		})
		return true, same, nil
	}
	return false, false, nil
}
