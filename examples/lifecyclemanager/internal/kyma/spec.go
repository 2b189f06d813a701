package kyma

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

const (
	// RemoteName is the name of the Kyma in each runtime.
	RemoteName = "default"
	// WatchedByLabel makes the API server of the runtime report changes: see config/watchers.yaml.
	WatchedByLabel = "operator.kyma-project.io/watched-by"
	watchedBy      = "kyma"
)

// syncSpec copies the spec of the Kyma in the runtime, where users edit it, to the control plane. A
// runtime without a Kyma gets one with the spec of the control plane. An edit in the control plane
// is undone, with an Event.
func (r *Reconciler) syncSpec(ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma) (*v1beta2.Kyma, error) {
	remote := &v1beta2.Kyma{}
	err := there.Get(ctx, client.ObjectKey{Namespace: skr.Namespace, Name: RemoteName}, remote)
	if apierrors.IsNotFound(err) {
		remote = remoteOf(kyma)
		return remote, there.Create(ctx, remote)
	}
	if err != nil {
		return nil, err
	}

	if err := watch(ctx, there, remote); err != nil {
		return nil, err
	}
	if equality.Semantic.DeepEqual(kyma.Spec, remote.Spec) {
		return remote, nil
	}

	before := kyma.DeepCopy()
	kyma.Spec = remote.Spec
	if err := r.Client.Patch(ctx, kyma, skr.After(before)); err != nil {
		return nil, err
	}

	if remote.Generation == remote.Status.ObservedGeneration {
		r.Events.Eventf(kyma, nil, corev1.EventTypeWarning, "EditUndone", "SyncSpec",
			"the spec is that of Kyma %s/%s in the runtime: edit it there", remote.Namespace, remote.Name)
	}
	return remote, nil
}

func remoteOf(kyma *v1beta2.Kyma) *v1beta2.Kyma {
	remote := &v1beta2.Kyma{Spec: kyma.Spec}
	remote.Namespace = skr.Namespace
	remote.Name = RemoteName
	remote.Labels = map[string]string{WatchedByLabel: watchedBy}
	return remote
}

// watch puts the label back if it was removed.
func watch(ctx context.Context, there *skr.Runtime, remote *v1beta2.Kyma) error {
	if remote.Labels[WatchedByLabel] == watchedBy {
		return nil
	}

	before := remote.DeepCopy()
	metav1.SetMetaDataLabel(&remote.ObjectMeta, WatchedByLabel, watchedBy)
	return there.Patch(ctx, remote, client.MergeFrom(before))
}
