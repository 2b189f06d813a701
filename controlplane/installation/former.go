package installation

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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

// replaceFormer removes the objects of a former agent, if the first or the last one is there. The
// first one is most often its webhook configuration, and the last one shows that a removal was
// interrupted. The API server knows the new webhook configuration before it learns of the removal,
// because it reads both in their order. The objects have no mark: the options name each of them.
func (v *visit) replaceFormer(ctx context.Context, status Status) (Status, error) {
	former := v.opts.Replaces
	if len(former) == 0 {
		return status, nil
	}
	var first, last *unstructured.Unstructured
	err := together(v.getInto(ctx, former[0], &first), v.getInto(ctx, former[len(former)-1], &last))
	if err != nil {
		return status, err
	}
	if first == nil && last == nil {
		return status, nil
	}

	isNamed := func(client.Object) bool { return true }
	held, err := v.removeIf(ctx, isNamed, former...)
	if err != nil || len(held) == 0 {
		return status, err
	}
	return awaitingEndOf(held), nil
}
