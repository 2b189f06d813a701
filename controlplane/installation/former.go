package installation

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	formerName  = "skr-webhook"
	renamedName = "runtime-watcher"
)

// SKRWebhook returns the objects that kyma-project/lifecycle-manager installs for its agent in a
// runtime, for [Options.Replaces]. The objects have only names and kinds. The webhook configuration
// is the first object. The argument is the namespace of the agent, usually kyma-system.
func SKRWebhook(namespace string) []*unstructured.Unstructured {
	const rbac = "rbac.authorization.k8s.io/v1"
	return append(agentOf(namespace, formerName, "watcher"),
		named(rbac, "ClusterRoleBinding", "", "read-kymas"),
		named(rbac, "ClusterRole", "", "kyma-reader"),
		named("scheduling.k8s.io/v1", "PriorityClass", "", formerName+"-priority"),
		named("v1", "ServiceAccount", namespace, formerName+"-sa"),
		named("v1", "Secret", namespace, formerName+"-tls"),
	)
}

// RenamedSKRWebhook is [SKRWebhook] with the names that lifecycle-manager's ADR 009 plans.
func RenamedSKRWebhook(namespace string) []*unstructured.Unstructured {
	return append(agentOf(namespace, renamedName, "runtime-watcher"),
		named("scheduling.k8s.io/v1", "PriorityClass", "", renamedName+"-priority"),
		named("v1", "Secret", namespace, renamedName+"-client"),
	)
}

// agentOf returns the objects that the agent has before and after the renaming. Its network
// policies have another name than the rest.
func agentOf(namespace, name, inPolicies string) []*unstructured.Unstructured {
	const policy, network = "kyma-project.io--", "networking.k8s.io/v1"
	return []*unstructured.Unstructured{
		named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", name),
		named("apps/v1", "Deployment", namespace, name),
		named("v1", "Service", namespace, name),
		named("v1", "Service", namespace, name+"-metrics"),
		named(network, "NetworkPolicy", namespace, policy+inPolicies+"-to-apiserver"),
		named(network, "NetworkPolicy", namespace, policy+inPolicies+"-to-dns"),
		named(network, "NetworkPolicy", namespace, policy+"seed-to-"+inPolicies),
		named(network, "NetworkPolicy", namespace, policy+"metrics-to-"+inPolicies),
	}
}

// replaceFormer removes the objects of former agents, if one with the kind of the first or of the
// last one is there. The first one is most often a webhook configuration, and the last one shows
// that a removal was interrupted. The list may have several agents, each in that order. The API
// server knows the new webhook configuration before it learns of the removal, because it reads both
// in their order. The objects have no mark: the options name each of them. An object with the mark
// of an installer of this package belongs to another operator, which has chosen a former name.
func (v *visit) replaceFormer(ctx context.Context, status Status) (Status, error) {
	hasFormer, err := v.hasFormer(ctx)
	if err != nil || !hasFormer {
		return status, err
	}
	if !v.opts.MayReplace(v.id) {
		const message = "waiting for a proof that the agent works, before the former one is removed"
		return progressing(ReasonFormerNeeded, message), nil
	}

	held, err := v.removeIf(ctx, isUnmarked, v.opts.Replaces...)
	if err != nil || len(held) == 0 {
		return status, err
	}
	return awaitingEndOf(held), nil
}

// hasFormer reads the objects with the kinds of the first object and of the last object.
func (v *visit) hasFormer(ctx context.Context) (bool, error) {
	former := v.opts.Replaces
	if len(former) == 0 {
		return false, nil
	}

	deciding := []string{former[0].GetKind(), former[len(former)-1].GetKind()}
	live := make([]*unstructured.Unstructured, len(former))
	var reads []func() error
	for n, object := range former {
		if slices.Contains(deciding, object.GetKind()) {
			reads = append(reads, v.readingObject(ctx, object, &live[n]))
		}
	}
	if err := together(reads...); err != nil {
		return false, err
	}

	isFormer := func(object *unstructured.Unstructured) bool { return object != nil && isUnmarked(object) }
	return slices.ContainsFunc(live, isFormer), nil
}

// isUnmarked reports whether no installer of this package has made an object, with any
// [names.Names].
func isUnmarked(object client.Object) bool {
	for annotation := range object.GetAnnotations() {
		if strings.HasSuffix(annotation, "/installed-by") {
			return false
		}
	}
	return true
}
