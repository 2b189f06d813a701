package kyma

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// moduleStatus reports a Manifest. Its status counts if it is about the version of its spec.
func moduleStatus(manifest *v1beta2.Manifest) v1beta2.ModuleStatus {
	status := v1beta2.ModuleStatus{
		Name: manifest.Spec.Module, Version: manifest.Spec.Version,
		State: manifest.Status.State, Message: manifest.Status.Message,
	}
	switch {
	case !manifest.DeletionTimestamp.IsZero():
		status.State = v1beta2.Deleting
	case status.State == v1beta2.Ready && manifest.Status.Version != manifest.Spec.Version, status.State == "":
		status.State = v1beta2.Processing
	}
	return status
}

// statusOf sums up the modules. The conditions stay.
func statusOf(kyma *v1beta2.Kyma, modules []v1beta2.ModuleStatus) v1beta2.KymaStatus {
	status := v1beta2.KymaStatus{State: v1beta2.Ready, Modules: modules, Conditions: kyma.Status.Conditions}
	for _, worse := range []v1beta2.State{v1beta2.Deleting, v1beta2.Processing, v1beta2.Error} {
		if slices.ContainsFunc(modules, func(m v1beta2.ModuleStatus) bool { return m.State == worse }) {
			status.State = worse
		}
	}
	return status
}

// reportThere writes the status in the runtime if it has changed, without the conditions.
func reportThere(ctx context.Context, there *skr.Runtime, remote *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	status.Conditions = nil
	if equality.Semantic.DeepEqual(remote.Status, status) {
		return nil
	}
	before := remote.DeepCopy()
	remote.Status = status
	return there.Status().Patch(ctx, remote, client.MergeFrom(before))
}
