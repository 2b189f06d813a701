package core

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// OwnerAnnotation on a watched object names the object in the control plane that represents the
// runtime, as "<namespace>/<name>".
const OwnerAnnotation = "operator.kyma-project.io/owned-by"

// Owner returns the owner that the newest state of the object names in [OwnerAnnotation], and the
// zero value without the annotation. The error wraps [ErrInvalidOwner].
func (c *Change) Owner() (types.NamespacedName, error) {
	value, found := c.New.Annotation(OwnerAnnotation)
	if !found {
		value, found = c.Old.Annotation(OwnerAnnotation)
	}
	if !found {
		return types.NamespacedName{}, nil
	}
	return ParseOwner(value)
}

// ParseOwner reads the value of [OwnerAnnotation]. The namespace is a DNS-1123 label and the name a
// DNS-1123 subdomain (RFC 1123), joined by '/'. The error wraps [ErrInvalidOwner].
func ParseOwner(value string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(value, "/")
	switch {
	case !found || strings.Contains(name, "/"):
		return types.NamespacedName{}, invalidOwner("want one '/' in", value)
	case !isLabel(namespace):
		return types.NamespacedName{}, invalidOwner("want a DNS-1123 label as namespace, have", namespace)
	case !isSubdomain(name):
		return types.NamespacedName{}, invalidOwner("want a DNS-1123 subdomain as name, have", name)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

func invalidOwner(want, have string) error {
	return fmt.Errorf("%w: %s %s", ErrInvalidOwner, want, shorten(have))
}

// maxSubdomain is the longest DNS-1123 subdomain that Kubernetes allows, in bytes.
const maxSubdomain = 253

// isSubdomain allows parts longer than a label, as Kubernetes does.
func isSubdomain(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' || strings.IndexFunc(part, notLabelRune) >= 0 {
			return false
		}
	}
	return len(name) <= maxSubdomain
}
