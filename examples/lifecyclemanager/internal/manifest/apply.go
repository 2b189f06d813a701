package manifest

import (
	"context"
	"fmt"
	"slices"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// apply makes the runtime have the content and no other objects of the inventory. The custom
// resource is created once. It returns the first thing that is still awaited, empty if there is
// none.
func (r *Reconciler) apply(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest, wanted *content,
) (awaited string, err error) {
	inventory := inventoryOf(slices.Concat(wanted.objects, wanted.data))
	former := without(manifest.Status.Inventory, slices.Concat(inventory, inventoryOf(wanted.ignored)))

	now := manifest.Status
	now.Inventory = slices.Concat(inventory, former)
	if now.ObservedGeneration != manifest.Generation {
		now.State, now.Message = v1beta2.Processing, "the objects are being applied"
	}
	if err := r.report(ctx, manifest, now); err != nil {
		return "", err
	}
	if err := there.ApplyAll(ctx, missing(manifest, wanted)); err != nil {
		return "", err
	}
	left, awaited, err := r.removeAll(ctx, there, manifest, former)
	if err == nil && awaited == "" {
		awaited, err = waitingFor(ctx, there, wanted, left)
	}
	if err != nil {
		return "", err
	}

	now = manifest.Status
	now.Inventory = slices.Concat(inventory, inventoryOf(left))
	now.CustomResourceCreated = now.CustomResourceCreated || len(wanted.data) > 0
	now.Version, now.State, now.Message = manifest.Spec.Version, v1beta2.Ready, awaited
	if awaited != "" {
		now.State = v1beta2.Processing
	}
	return awaited, r.report(ctx, manifest, now)
}

// missing returns the objects to apply: the custom resource only if it was never created.
func missing(manifest *v1beta2.Manifest, wanted *content) []*unstructured.Unstructured {
	if manifest.Status.CustomResourceCreated {
		return wanted.objects
	}
	utils.SetCommonMetadata(wanted.data, nil, map[string]string{skr.OnlyCreate: "true"})
	return slices.Concat(wanted.objects, wanted.data)
}

// waitingFor returns the first object that is not ready, or of those that are left not gone. The
// user may have deleted the custom resource.
func waitingFor(
	ctx context.Context, there *skr.Runtime, wanted *content, left []*unstructured.Unstructured,
) (string, error) {
	for i, object := range slices.Concat(wanted.objects, wanted.data) {
		live := object.DeepCopy()
		err := there.Get(ctx, client.ObjectKeyFromObject(object), live)
		if apierrors.IsNotFound(err) && i >= len(wanted.objects) {
			continue
		}
		if err != nil {
			return "", err
		}
		result, err := status.Compute(live)
		if err != nil {
			return "", err
		}
		if result.Status != status.CurrentStatus {
			return fmt.Sprintf("%s %s: %s", object.GetKind(), object.GetName(), result.Message), nil
		}
	}
	if len(left) > 0 {
		return ending(left[0]), nil
	}
	return "", nil
}

func ending(object *unstructured.Unstructured) string {
	return fmt.Sprintf("waiting for the end of %s %s", object.GetKind(), object.GetName())
}
