package manifest

import (
	"context"
	"fmt"
	"slices"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// apply makes the runtime have the objects of the Manifest and no others of its inventory. It
// returns the first thing that is still awaited, empty if there is none.
func (r *Reconciler) apply(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest,
) (awaited string, err error) {
	objects, err := decode(manifest.Spec.Resources)
	if err != nil {
		return "", err
	}
	wanted := inventoryOf(objects)
	former := without(manifest.Status.Inventory, wanted)

	now := manifest.Status
	now.Inventory = slices.Concat(wanted, former)
	if err := r.report(ctx, manifest, now); err != nil {
		return "", err
	}
	if err := there.ApplyAll(ctx, objects); err != nil {
		return "", err
	}
	left, awaited, err := r.removeAll(ctx, there, manifest, former)
	if err != nil {
		return "", err
	}
	if awaited == "" {
		awaited, err = waitingFor(ctx, there, objects, left)
	}
	if err != nil {
		return "", err
	}

	now.Inventory = slices.Concat(wanted, inventoryOf(left))
	now.Version, now.State, now.Message = manifest.Spec.Version, v1beta2.Ready, awaited
	if awaited != "" {
		now.State = v1beta2.Processing
	}
	return awaited, r.report(ctx, manifest, now)
}

// waitingFor returns the first object that is not ready, or of those that are left not gone.
func waitingFor(ctx context.Context, there *skr.Runtime, objects, left []*unstructured.Unstructured) (string, error) {
	for _, object := range objects {
		live := object.DeepCopy()
		if err := there.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
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
