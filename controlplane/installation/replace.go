package installation

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// formerName is the name of most objects of kyma-project/runtime-watcher in a runtime.
const formerName = "skr-webhook"

// SKRWebhook returns the objects that kyma-project/lifecycle-manager installs for its agent in a
// runtime, for [Options.Replaces]. They have names and kinds only. The webhook configuration is the
// first. The namespace is that of the agent, usually kyma-system.
func SKRWebhook(namespace string) []*unstructured.Unstructured {
	const policy = "kyma-project.io--"
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	network := schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	scheduling := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1"}
	apps, core := schema.GroupVersion{Group: "apps", Version: "v1"}, schema.GroupVersion{Version: "v1"}
	return []*unstructured.Unstructured{
		named(admission.WithKind("ValidatingWebhookConfiguration"), "", formerName),
		named(apps.WithKind(kindDeployment), namespace, formerName),
		named(core.WithKind("Service"), namespace, formerName),
		named(core.WithKind("Service"), namespace, formerName+"-metrics"),
		named(network, namespace, policy+"watcher-to-apiserver"),
		named(network, namespace, policy+"watcher-to-dns"),
		named(network, namespace, policy+"seed-to-watcher"),
		named(network, namespace, policy+"metrics-to-watcher"),
		named(rbac.WithKind("ClusterRoleBinding"), "", "read-kymas"),
		named(rbac.WithKind("ClusterRole"), "", "kyma-reader"),
		named(scheduling.WithKind("PriorityClass"), "", formerName+"-priority"),
		named(core.WithKind("ServiceAccount"), namespace, formerName+"-sa"),
		named(core.WithKind("Secret"), namespace, formerName+"-tls"),
	}
}

func named(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// replace removes the objects of a former agent. The API server knows the new webhook
// configuration before it learns of the removal, because it reads both in their order.
func (i *Installer) replace(ctx context.Context, in *cluster, status Status) (Status, error) {
	left, err := i.hasFormer(ctx, in)
	if err != nil || !left {
		return status, err
	}
	held, err := in.remove(ctx, i.opts.Replaces)
	if err != nil || len(held) == 0 {
		return status, err
	}
	return awaitingEndOf(held), nil
}

// hasFormer reports whether the first or the last object of a former agent is there. The first one
// is most often its webhook configuration, and the last one shows that a removal was interrupted.
func (i *Installer) hasFormer(ctx context.Context, in *cluster) (bool, error) {
	if len(i.opts.Replaces) == 0 {
		return false, nil
	}
	var first, last *unstructured.Unstructured
	err := together(
		in.getInto(ctx, i.opts.Replaces[0], &first),
		in.getInto(ctx, i.opts.Replaces[len(i.opts.Replaces)-1], &last),
	)
	return first != nil || last != nil, err
}
