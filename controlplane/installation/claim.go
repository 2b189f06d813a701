package installation

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// claimRuntime creates the namespace and claims the runtime. No object can be created in a
// namespace that ends.
func (v *visit) claimRuntime(ctx context.Context) error {
	if err := v.createNamespace(ctx); err != nil {
		return err
	}
	if v.found.namespaceEnds() {
		return nil
	}

	if err := v.claimManagers(ctx); err != nil {
		return err
	}
	return v.claimRole(ctx)
}

// createNamespace creates, and does not apply: an apply would take over a namespace that appeared
// since the read.
func (v *visit) createNamespace(ctx context.Context) error {
	if v.found.namespace != nil {
		return nil
	}

	err := v.Create(ctx, v.renderNamespace(), client.FieldOwner(fieldOwner))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return v.wrapRequest(err, "create Namespace", v.opts.Namespace)
}

// claimManagers makes the ConfigMap with the managers one of this installer, before any other
// object is written. It fails if the ConfigMap is not as it was read: an API server lets only one
// of two installers create it, or change the same version of it.
func (v *visit) claimManagers(ctx context.Context) error {
	wanted := v.want.managers
	live := v.found.managers
	if live == nil {
		err := v.Create(ctx, wanted.DeepCopy(), client.FieldOwner(fieldOwner))
		return v.wrapRequest(err, "claim ConfigMap", wanted.GetName())
	}
	if v.haveMark(live) {
		return nil
	}

	claimed := live.DeepCopy()
	v.addMark(claimed)
	unchanged := client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{})
	err := v.Patch(ctx, claimed, unchanged, client.FieldOwner(fieldOwner))
	return v.wrapRequest(err, "claim ConfigMap", wanted.GetName())
}

// claimRole creates the ClusterRole of an informer without rules, unless it is there. Its name
// comes from ConfigurationName, so the ConfigMap does not decide between two installers with
// different names. All installers have one field manager, so an apply would take over the role that
// the other installer has just made. The ClusterRoleBinding has the same name, and follows the
// role.
func (v *visit) claimRole(ctx context.Context) error {
	if !v.opts.Informer || v.found.role != nil {
		return nil
	}

	role := named("rbac.authorization.k8s.io/v1", "ClusterRole", "", v.manifests.copyOf(roleFile).GetName())
	v.addMark(role)
	annotate(role, v.opts.key(annotationRuntime), string(v.id))
	if err := v.Create(ctx, role, client.FieldOwner(fieldOwner)); err != nil {
		return v.wrapRequest(err, "claim ClusterRole", role.GetName())
	}
	v.found.role = role
	return nil
}
