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

// applyContent makes the runtime have the content and no other objects of the inventory. The custom
// resource is created once. It returns the state of the module, which is also in the status.
func (r *Reconciler) applyContent(
	ctx context.Context, there *skr.Runtime, manifest *v1beta2.Manifest, wanted *content,
) (v1beta2.State, error) {
	inventory := inventoryOf(slices.Concat(wanted.objects, wanted.data))
	former := without(manifest.Status.Inventory, slices.Concat(inventory, inventoryOf(wanted.ignored)))

	now := manifest.Status
	now.Inventory = slices.Concat(inventory, former)
	if now.ObservedGeneration != manifest.Generation {
		now.State = v1beta2.Processing
		now.Message = "the objects are being applied"
	}

	if err := r.reportStatus(ctx, manifest, now); err != nil {
		return "", err
	}

	if err := there.ApplyAll(ctx, r.ownerOf(manifest), missing(manifest, wanted)); err != nil {
		return "", err
	}

	left, awaited, err := r.removeAll(ctx, there, manifest, former)
	if err != nil {
		return "", err
	}

	state := v1beta2.Processing
	if awaited == "" {
		state, awaited, err = stateOf(ctx, there, wanted, left)
	}
	if err != nil {
		return "", err
	}

	now = manifest.Status
	now.Inventory = slices.Concat(inventory, inventoryOf(left))
	now.CustomResourceCreated = now.CustomResourceCreated || len(wanted.data) > 0
	now.Version = manifest.Spec.Version
	now.State = state
	now.Message = awaited

	return state, r.reportStatus(ctx, manifest, now)
}

// missing returns the objects to apply: the custom resource only if it was never created.
func missing(manifest *v1beta2.Manifest, wanted *content) []*unstructured.Unstructured {
	if manifest.Status.CustomResourceCreated {
		return slices.Clone(wanted.objects)
	}
	utils.SetCommonMetadata(wanted.data, nil, map[string]string{skr.OnlyCreate: "true"})
	return slices.Concat(wanted.objects, wanted.data)
}

// condition is the state of one object, with the reason why it is not Ready.
type condition struct {
	state   v1beta2.State
	message string
}

// stateOf returns the state of a module: the first error of an object, or else the first object
// that is not ready, or of those that are left not gone.
func stateOf(
	ctx context.Context, there *skr.Runtime, wanted *content, left []*unstructured.Unstructured,
) (v1beta2.State, string, error) {
	objects := slices.Concat(wanted.objects, wanted.data)
	conditions := make([]condition, len(objects))
	errs := make([]error, len(objects))
	skr.InParallel(len(objects), func(i int) {
		mayMiss := i >= len(wanted.objects) // The user may have deleted the custom resource.
		conditions[i], errs[i] = conditionOf(ctx, there, objects[i], mayMiss)
	})

	for _, err := range errs {
		if err != nil {
			return "", "", err
		}
	}

	for _, worse := range []v1beta2.State{v1beta2.Error, v1beta2.Processing} {
		for _, c := range conditions {
			if c.state == worse {
				return c.state, c.message, nil
			}
		}
	}

	if len(left) > 0 {
		return v1beta2.Processing, ending(left[0]), nil
	}

	return v1beta2.Ready, "", nil
}

// conditionOf reads an object. A custom resource of a module reports its own state, as all modules
// of Kyma do, in status.state.
func conditionOf(
	ctx context.Context, there *skr.Runtime, object *unstructured.Unstructured, mayMiss bool,
) (condition, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())

	err := there.Get(ctx, client.ObjectKeyFromObject(object), live)
	if apierrors.IsNotFound(err) && mayMiss {
		return condition{state: v1beta2.Ready}, nil
	}
	if err != nil {
		return condition{}, err
	}

	result, err := status.Compute(live)
	if err != nil {
		return condition{}, err
	}

	name := object.GetKind() + " " + object.GetName()
	if result.Status == status.FailedStatus {
		return condition{v1beta2.Error, name + ": " + result.Message}, nil
	}
	if result.Status != status.CurrentStatus {
		return condition{v1beta2.Processing, name + ": " + result.Message}, nil
	}

	own, _, _ := unstructured.NestedString(live.Object, "status", "state")
	switch v1beta2.State(own) {
	case v1beta2.Error:
		return condition{v1beta2.Error, name + " reports the state " + own}, nil
	case v1beta2.Processing, v1beta2.Deleting:
		return condition{v1beta2.Processing, name + " reports the state " + own}, nil
	default:
		return condition{state: v1beta2.Ready}, nil
	}
}

func ending(object *unstructured.Unstructured) string {
	return fmt.Sprintf("waiting for the end of %s %s", object.GetKind(), object.GetName())
}
