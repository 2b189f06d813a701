package admission

import (
	"cmp"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// subresourceScale has objects of autoscaling/v1 Scale.
const subresourceScale = "scale"

// target is the resource or the subresource that one webhook watches. The subresource is "" for the
// resource itself.
type target struct{ resource, subresource string }

func (t target) String() string {
	if t.subresource == "" {
		return t.resource
	}
	return t.resource + "/" + t.subresource
}

func (r *registration) watchedTarget() target {
	resource, subresource, _ := strings.Cut(r.Resource.Resource, "/")
	if r.Field == core.FieldStatus {
		subresource = string(core.FieldStatus)
	}
	return target{resource, subresource}
}

func (r *registration) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Resource.Group, Resource: r.watchedTarget().resource}
}

// webhookPath has the kind of the resource for a subresource, if it is known.
func (r *registration) webhookPath(t target) string {
	path := pathOf(r.Manager)
	if !isForeign(t.subresource) {
		return path
	}
	if segment := kindSegment(cmp.Or(r.Kind, builtins()[r.groupResource()].kind)); segment != "" {
		path += "/" + segment
	}
	return path
}

// isForeign reports whether the objects of a review may be of another kind than the resource.
func isForeign(subresource string) bool {
	return subresource != "" && subresource != string(core.FieldStatus)
}

// operations returns the operations of a rule. CONNECT exists for subresources only, and never for
// scale.
func (t target) operations() []admissionregistrationv1.OperationType {
	operations := []admissionregistrationv1.OperationType{
		admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
	}
	if isForeign(t.subresource) && t.subresource != subresourceScale {
		operations = append(operations, admissionregistrationv1.Connect)
	}
	return operations
}

type builtin struct {
	kind   string
	scales bool
}

// builtins are the resources of Kubernetes with subresources other than status, as discovery lists
// them. Add a resource when Kubernetes gets one.
func builtins() map[schema.GroupResource]builtin {
	return map[schema.GroupResource]builtin{
		{Resource: "namespaces"}:             {kind: "Namespace"},
		{Resource: "nodes"}:                  {kind: "Node"},
		{Resource: "pods"}:                   {kind: "Pod"},
		{Resource: "replicationcontrollers"}: {kind: "ReplicationController", scales: true},
		{Resource: "serviceaccounts"}:        {kind: "ServiceAccount"},
		{Resource: "services"}:               {kind: "Service"},

		{Group: "apps", Resource: "deployments"}:  {kind: "Deployment", scales: true},
		{Group: "apps", Resource: "replicasets"}:  {kind: "ReplicaSet", scales: true},
		{Group: "apps", Resource: "statefulsets"}: {kind: "StatefulSet", scales: true},

		{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: {kind: "CertificateSigningRequest"},
	}
}

// mayScale is true for a custom resource, which has a dot in its group. It may be true in vain:
// some groups of Kubernetes have a dot, too, and a rule may name a subresource that does not exist.
func mayScale(resource schema.GroupResource) bool {
	return builtins()[resource].scales || strings.Contains(resource.Group, ".")
}
