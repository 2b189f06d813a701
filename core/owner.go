package core

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/dns1123"
)

// OwnerAnnotation on a watched object names the object in the control plane that represents the
// runtime, as "<namespace>/<name>". It is the default of all change sources. An operator with its
// own names uses its own annotation.
const OwnerAnnotation = "operator.kyma-project.io/owned-by"

func (c *Change) ownerAnnotation() string { return cmp.Or(c.OwnerAnnotation, OwnerAnnotation) }

// ValidateOwnerAnnotation returns an error if name cannot be the name of an annotation. An empty
// name is valid and selects the default.
func ValidateOwnerAnnotation(name string) error {
	if name == "" || dns1123.IsQualifiedName(name) {
		return nil
	}
	return fmt.Errorf("option OwnerAnnotation: want the name of an annotation, "+
		"[<DNS-1123 subdomain>/]<name>, have %.320q", name)
}

// Owner returns the owner that the newest state of the object names in its owner annotation, or the
// zero value if the object has no such annotation. The error has the [Reason] "invalid_owner" and
// is permanent.
func (c *Change) Owner() (types.NamespacedName, error) {
	value, found := c.New.Annotation(c.ownerAnnotation())
	if !found {
		value, found = c.Old.Annotation(c.ownerAnnotation())
	}
	if !found {
		return types.NamespacedName{}, nil
	}
	return parseOwner(value)
}

// parseOwner reads the value of [OwnerAnnotation]. The namespace is a DNS-1123 label and the name a
// DNS-1123 subdomain (RFC 1123), joined by '/'. The error wraps errInvalidOwner.
func parseOwner(value string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(value, "/")
	switch {
	case !found || strings.Contains(name, "/"):
		return types.NamespacedName{}, invalidOwner("want one '/' in", value)
	case !dns1123.IsLabel(namespace):
		return types.NamespacedName{}, invalidOwner("want a DNS-1123 label as namespace, have", namespace)
	case !dns1123.IsSubdomain(name):
		return types.NamespacedName{}, invalidOwner("want a DNS-1123 subdomain as name, have", name)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

func invalidOwner(want, have string) error {
	return fmt.Errorf("%w: %s %s", errInvalidOwner, want, shorten(have))
}
