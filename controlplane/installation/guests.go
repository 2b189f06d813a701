package installation

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

// guestKinds are the kinds of objects that another client may have put into the namespace of the
// agent. Kinds that Kubernetes makes from these, such as ReplicaSets and Endpoints, are left out.
func guestKinds() []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	add := func(group string, names ...string) {
		for _, name := range names {
			kinds = append(kinds, schema.GroupVersionKind{Group: group, Version: "v1", Kind: name})
		}
	}
	add("", "ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount")
	add("apps", "DaemonSet", "Deployment", "StatefulSet")
	add("batch", "CronJob", "Job")
	add("networking.k8s.io", "Ingress", "NetworkPolicy")
	add("policy", "PodDisruptionBudget")
	add("rbac.authorization.k8s.io", "Role", "RoleBinding")
	add("coordination.k8s.io", "Lease")
	return kinds
}

// guestPage bounds one list. The objects that a platform adds to each namespace are fewer.
const guestPage = 100

// guest returns kind and name of an object in the namespace after all objects of this installation
// were removed, "" if there is none. An object of another installation with our owner is a guest,
// too. A client may know some of the kinds only: objects that cannot be listed may be there.
func (v *visit) guest(ctx context.Context) (string, error) {
	for _, kind := range guestKinds() {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := v.List(ctx, list, client.InNamespace(v.opts.Namespace), client.Limit(guestPage))
		if meta.IsNoMatchError(err) {
			return "any " + kind.Kind, nil
		}
		if err != nil {
			return "", v.wrap(err, "list objects of kind", kind.Kind)
		}

		for n := range list.Items {
			if item := &list.Items[n]; !isOfPlatform(kind.Kind, item) {
				return remote.TextOf(kind.Kind+" "+item.Name, remote.MaxNote), nil
			}
		}
		if list.Continue != "" {
			return "more than a page of " + kind.Kind, nil
		}
	}
	return "", nil
}

// isOfPlatform reports whether an object ends with its controller, or whether Kubernetes, OpenShift
// or Istio adds such an object to each namespace.
func isOfPlatform(kind string, object *metav1.PartialObjectMetadata) bool {
	if object.DeletionTimestamp != nil || metav1.GetControllerOf(object) != nil {
		return true
	}
	accounts := []string{"default", "builder", "deployer"}
	switch kind {
	case "ConfigMap":
		return slices.Contains([]string{"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"}, object.Name)
	case "ServiceAccount":
		return slices.Contains(accounts, object.Name)
	case "Secret":
		return slices.Contains(accounts, object.Annotations["kubernetes.io/service-account.name"])
	case "RoleBinding":
		return strings.HasPrefix(object.Name, "system:")
	default:
		return false
	}
}
