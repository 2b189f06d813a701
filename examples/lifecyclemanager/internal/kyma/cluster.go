package kyma

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

// takenError means that the cluster of a runtime belongs to another Kyma.
type takenError struct {
	cluster types.UID
	other   string
}

// Error implements [error].
func (e takenError) Error() string {
	return fmt.Sprintf("the kubeconfig leads to cluster %q, which Kyma %s has: correct the kubeconfig, or delete the "+
		"Kyma that should not have it", e.cluster, e.other)
}

// claimCluster makes the cluster that the kubeconfig leads to the one of the Kyma, before anything
// is applied, reported or removed there. If two Kymas claim a cluster at the same time, both
// withdraw, or one of them has the cluster. Each writes its claim first, and then reads the others.
func (r *Reconciler) claimCluster(ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma) error {
	cluster, err := there.Cluster(ctx)
	if err != nil || kyma.Status.Cluster == cluster {
		return err
	}

	former := kyma.Status.Cluster
	if err := r.checkFree(ctx, kyma, cluster); err != nil {
		return err
	}

	if err := r.setCluster(ctx, kyma, cluster); err != nil {
		return err
	}

	there.PrepareAgain()
	taken := r.checkFree(ctx, kyma, cluster)
	if taken == nil {
		return nil
	}

	// Another Kyma has claimed the cluster meanwhile, so this one withdraws.
	if err := r.setCluster(ctx, kyma, former); err != nil {
		return err
	}
	return taken
}

// claimToRemove is claimCluster for a Kyma that is deleted. It reports whether the kubeconfig leads
// to another cluster than the one that the Kyma had. Nothing is removed from that cluster, because
// it was created again or the kubeconfig is wrong.
func (r *Reconciler) claimToRemove(
	ctx context.Context, there *skr.Runtime, kyma *v1beta2.Kyma,
) (isElsewhere bool, err error) {
	if kyma.Status.Cluster == "" {
		return false, r.claimCluster(ctx, there, kyma)
	}

	cluster, err := there.Cluster(ctx)
	if err != nil || cluster == kyma.Status.Cluster {
		return false, err
	}

	return true, r.checkFree(ctx, kyma, cluster)
}

// checkFree fails with takenError if another Kyma has the cluster.
func (r *Reconciler) checkFree(ctx context.Context, kyma *v1beta2.Kyma, cluster types.UID) error {
	other, err := skr.KymaOf(ctx, r.Direct, cluster, client.ObjectKeyFromObject(kyma))
	if err != nil || other == "" {
		return err
	}
	return takenError{cluster, other}
}

func (r *Reconciler) setCluster(ctx context.Context, kyma *v1beta2.Kyma, cluster types.UID) error {
	before := kyma.DeepCopy()
	kyma.Status.Cluster = cluster
	return skr.Ended(r.Client.Status().Patch(ctx, kyma, skr.After(before)))
}
