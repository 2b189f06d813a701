package kyma

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// moduleStatus reports a Manifest. Its status counts if it is about its spec.
func moduleStatus(manifest *v1beta2.Manifest) v1beta2.ModuleStatus {
	status := v1beta2.ModuleStatus{
		Name: manifest.Spec.Module, Version: manifest.Spec.Version,
		State: manifest.Status.State, Message: manifest.Status.Message,
	}
	switch {
	case !manifest.DeletionTimestamp.IsZero():
		status.State = v1beta2.Deleting
	case status.State == v1beta2.Ready && manifest.Status.ObservedGeneration != manifest.Generation, status.State == "":
		status.State = v1beta2.Processing
	}
	return status
}

// statusOf sums up the modules and the agent. The conditions stay.
func statusOf(kyma *v1beta2.Kyma, modules []v1beta2.ModuleStatus) v1beta2.KymaStatus {
	status := v1beta2.KymaStatus{State: v1beta2.Ready, Modules: modules, Conditions: kyma.Status.Conditions}
	watcher := meta.FindStatusCondition(kyma.Status.Conditions, v1beta2.WatcherInstalled)
	if watcher == nil || watcher.Status != metav1.ConditionTrue {
		status.State, status.Message = v1beta2.Processing, "the agent is not installed"
	}
	if watcher != nil && watcher.Status != metav1.ConditionTrue {
		status.Message += ": " + watcher.Reason + ": " + watcher.Message
	}
	for _, worse := range []v1beta2.State{v1beta2.Deleting, v1beta2.Processing, v1beta2.Error} {
		if slices.ContainsFunc(modules, func(m v1beta2.ModuleStatus) bool { return m.State == worse }) {
			status.State = worse
		}
	}
	return status
}

// report writes the status if it has changed. The patch replaces all conditions, and conflicts if
// the installer of the agent has written its own meanwhile.
func (r *Reconciler) report(ctx context.Context, kyma *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	return client.IgnoreNotFound(write(ctx, r.Client, kyma, status))
}

// reportThere writes the status in the runtime if it has changed, with the condition Ready alone.
func reportThere(ctx context.Context, there *skr.Runtime, remote *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	status.Conditions = remote.Status.Conditions
	return write(ctx, there, remote, status)
}

func write(ctx context.Context, c client.Client, kyma *v1beta2.Kyma, status v1beta2.KymaStatus) error {
	status.Message, status.ObservedGeneration = skr.Short(status.Message), kyma.Generation
	status.Conditions = v1beta2.SetReady(status.Conditions, status.State, status.Message, kyma.Generation)
	if equality.Semantic.DeepEqual(kyma.Status, status) {
		return nil
	}
	before := kyma.DeepCopy()
	kyma.Status = status
	return c.Status().Patch(ctx, kyma, skr.After(before))
}
