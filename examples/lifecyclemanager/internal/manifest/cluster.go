package manifest

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// connectRuntime returns the runtime of a Manifest and its cluster, if it is the one that the Kyma
// has. A wrong kubeconfig leads to the cluster of another Kyma, where nothing may be written or
// removed.
func (r *Reconciler) connectRuntime(ctx context.Context, manifest *v1beta2.Manifest) (*skr.Runtime, types.UID, error) {
	there, err := r.Connect(ctx, client.ObjectKeyFromObject(manifest), kymaOf(manifest))
	if err != nil {
		return nil, "", err
	}

	cluster, err := there.Cluster(ctx)
	if err != nil {
		return there, "", err
	}

	kyma := &v1beta2.Kyma{}
	err = r.Client.Get(ctx, kymaOf(manifest), kyma)
	if err == nil && kyma.Status.Cluster == cluster {
		return there, cluster, nil
	}

	err = r.Direct.Get(ctx, kymaOf(manifest), kyma) // The cache may be late.
	if apierrors.IsNotFound(err) {
		return there, cluster, r.checkOrphan(ctx, manifest, cluster)
	}
	if err != nil || kyma.Status.Cluster == cluster {
		return there, cluster, err
	}

	other, err := skr.KymaOf(ctx, r.Direct, cluster, kymaOf(manifest))
	if err != nil {
		return there, cluster, err
	}

	isMadeAnew := other == "" && isElsewhere(manifest, cluster)
	if isMadeAnew && !kyma.DeletionTimestamp.IsZero() {
		return there, cluster, nil // A Kyma that is deleted does not claim the new cluster.
	}

	return there, cluster, fmt.Errorf("the kubeconfig leads to cluster %q, and Kyma %s has cluster %q",
		cluster, kyma.Name, kyma.Status.Cluster)
}

// checkOrphan fails with [runtimes.ErrGone] if the cluster of a Manifest without a Kyma belongs to
// another Kyma by now.
func (r *Reconciler) checkOrphan(ctx context.Context, manifest *v1beta2.Manifest, cluster types.UID) error {
	other, err := skr.KymaOf(ctx, r.Direct, cluster, kymaOf(manifest))
	if err != nil || other == "" {
		return err
	}
	return fmt.Errorf("%w: its cluster belongs to Kyma %s", runtimes.ErrGone, other)
}

// enterCluster notes the cluster. One that was made anew has no object of the inventory, and no
// custom resource.
func (r *Reconciler) enterCluster(ctx context.Context, manifest *v1beta2.Manifest, cluster types.UID) error {
	if manifest.Status.Cluster == cluster {
		return nil
	}

	status := manifest.Status
	if isElsewhere(manifest, cluster) {
		ctrl.LoggerFrom(ctx).Info("the cluster is another one: the module is installed anew", "cluster", cluster,
			"former", manifest.Status.Cluster)
		status = v1beta2.ManifestStatus{Conditions: manifest.Status.Conditions}
	}

	status.Cluster = cluster
	return r.reportStatus(ctx, manifest, status)
}

// isElsewhere reports whether the objects of a Manifest are in another cluster, which the
// kubeconfig no longer leads to.
func isElsewhere(manifest *v1beta2.Manifest, cluster types.UID) bool {
	return manifest.Status.Cluster != "" && manifest.Status.Cluster != cluster
}
