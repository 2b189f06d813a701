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

// target is the part of a resource that one webhook is called for. Its subresource is "" for the
// resource itself.
type target struct{ resource, subresource string }

// String returns the target as in a rule.
func (t target) String() string {
	if t.subresource == "" {
		return t.resource
	}
	return t.resource + "/" + t.subresource
}

// target returns the part of the resource that the watch names.
func (r *registration) target() target {
	resource, subresource, _ := strings.Cut(r.Resource.Resource, "/")
	if r.Field == core.FieldStatus {
		subresource = string(core.FieldStatus)
	}
	return target{resource, subresource}
}

// includesScale reports whether the watch has a second webhook, because scale writes the spec.
func (r *registration) includesScale() bool {
	return r.target().subresource == "" && mayScale(r.groupResource())
}

func (r *registration) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Resource.Group, Resource: r.target().resource}
}

// path returns the path of the reviews of a target. That of a subresource has the kind of the
// resource, if it is known.
func (r *registration) path(t target) string {
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

// operations returns those of a rule. CONNECT exists for subresources only, and never for scale.
func (t target) operations() []admissionregistrationv1.OperationType {
	operations := []admissionregistrationv1.OperationType{
		admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
	}
	if isForeign(t.subresource) && t.subresource != subresourceScale {
		operations = append(operations, admissionregistrationv1.Connect)
	}
	return operations
}
