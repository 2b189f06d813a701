package installation

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Uninstall removes the objects that Install has made, in reverse order. The webhook configuration
// comes first, and the agent when no API server can call it any more. Call it again until the state
// is [Removed]. Of r only ID and Client matter.
//
// Missing objects are no error, and neither is a runtime that is gone, which has no client. A
// runtime that cannot be reached is an error.
func (i *Installer) Uninstall(ctx context.Context, r Runtime) (Status, error) {
	i.looks.Delete(r.ID)
	i.restarts.Delete(r.ID)
	if r.Client == nil {
		return Status{State: Removed}, nil
	}
	ctx, end := i.budgets.Begin(ctx)
	defer end()
	return bounded(i.uninstall(ctx, i.cluster(&r)))
}

func (i *Installer) uninstall(ctx context.Context, in *cluster) (Status, error) {
	found, err := i.read(ctx, in)
	if err != nil {
		return Status{}, err
	}
	if err := i.checkOwner(in, found.configuration, found.managers, found.role); err != nil {
		return Status{State: Removed}, nil //nolint:nilerr // Nothing there is of this installer.
	}
	held, err := in.remove(ctx, i.bareConfiguration())
	if err == nil && len(held) == 0 {
		held, err = in.remove(ctx, i.installed(found)...)
	}
	if err != nil {
		return Status{}, err
	}
	return awaitingEndOf(held), nil
}

func (i *Installer) bareConfiguration() *unstructured.Unstructured {
	return named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", i.opts.ConfigurationName)
}

// installed has the ConfigMap last, which marks the runtime, and then a namespace of ours.
func (i *Installer) installed(found existing) (objects []*unstructured.Unstructured) {
	if i.opts.Informer || found.role != nil {
		objects = i.removable(partInformer)
	}
	objects = append(objects, i.object(deploymentFile), i.secret(&Runtime{}))
	objects = append(objects, i.formerPullSecret(found.managers)...)
	for _, part := range []int{partService, partCanary, partBase} {
		objects = append(objects, i.removable(part)...)
	}
	objects = append(objects, i.managersMap(&Runtime{}, ""))
	if i.ours(found.namespace) {
		objects = append(objects, i.namespace())
	}
	return objects
}

func awaitingEndOf(held []*unstructured.Unstructured) Status {
	if len(held) == 0 {
		return Status{State: Removed}
	}
	names := make([]string, len(held))
	for n, object := range held {
		names[n] = object.GetKind() + " " + object.GetName()
	}
	return progressing(reasonObjectsEnding, "waiting for the end of "+strings.Join(names, ", "))
}

const formerName = "skr-webhook"

// SKRWebhook returns the objects that kyma-project/lifecycle-manager installs for its agent in a
// runtime, for [Options.Replaces]. They have names and kinds only. The webhook configuration is the
// first. The namespace is that of the agent, usually kyma-system.
func SKRWebhook(namespace string) []*unstructured.Unstructured {
	const policy, network, rbac = "kyma-project.io--", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"
	return []*unstructured.Unstructured{
		named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", formerName),
		named("apps/v1", "Deployment", namespace, formerName),
		named("v1", "Service", namespace, formerName),
		named("v1", "Service", namespace, formerName+"-metrics"),
		named(network, "NetworkPolicy", namespace, policy+"watcher-to-apiserver"),
		named(network, "NetworkPolicy", namespace, policy+"watcher-to-dns"),
		named(network, "NetworkPolicy", namespace, policy+"seed-to-watcher"),
		named(network, "NetworkPolicy", namespace, policy+"metrics-to-watcher"),
		named(rbac, "ClusterRoleBinding", "", "read-kymas"),
		named(rbac, "ClusterRole", "", "kyma-reader"),
		named("scheduling.k8s.io/v1", "PriorityClass", "", formerName+"-priority"),
		named("v1", "ServiceAccount", namespace, formerName+"-sa"),
		named("v1", "Secret", namespace, formerName+"-tls"),
	}
}

func named(version, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(version)
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// replace removes the objects of a former agent, if the first or the last one is there. The first
// one is most often its webhook configuration, and the last one shows that a removal was
// interrupted. The API server knows the new webhook configuration before it learns of the removal,
// because it reads both in their order.
func (i *Installer) replace(ctx context.Context, in *cluster, status Status) (Status, error) {
	former := i.opts.Replaces
	if len(former) == 0 {
		return status, nil
	}
	var first, last *unstructured.Unstructured
	err := together(in.getInto(ctx, former[0], &first), in.getInto(ctx, former[len(former)-1], &last))
	if err != nil || first == nil && last == nil {
		return status, err
	}
	held, err := in.remove(ctx, former...)
	if err != nil || len(held) == 0 {
		return status, err
	}
	return awaitingEndOf(held), nil
}
