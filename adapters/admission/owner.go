package admission

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// OwnerAnnotation on a watched object names the object in the control plane that stands for the runtime, as
// "<namespace>/<name>".
const OwnerAnnotation = "operator.kyma-project.io/owned-by"

// ErrInvalidOwner means that the value of [OwnerAnnotation] names no object.
var ErrInvalidOwner = errors.New("owner is not <namespace>/<name>")

// What can be wrong with the owner of an object, as [Hooks].OwnerProblem gets it.
const (
	// OwnerMissing means that an owner is required, and that the object has none.
	OwnerMissing = "missing"
	// OwnerMalformed means that the annotation is there, and not what it should be.
	OwnerMalformed = "malformed"
)

// ParseOwner reads the value of [OwnerAnnotation]: a namespace and the name of an object, both as Kubernetes allows
// them (RFC 1123), with one '/' between. The error wraps [ErrInvalidOwner] and says what is wrong.
func ParseOwner(value string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(value, "/")
	if !found || strings.Contains(name, "/") {
		return types.NamespacedName{}, fmt.Errorf("%w: want one '/' in %.80q", ErrInvalidOwner, value)
	}

	if wrong := validation.IsDNS1123Label(namespace); wrong != nil {
		return types.NamespacedName{}, fmt.Errorf("%w: namespace %.80q: %s", ErrInvalidOwner, namespace, wrong[0])
	}

	if wrong := validation.IsDNS1123Subdomain(name); wrong != nil {
		return types.NamespacedName{}, fmt.Errorf("%w: name %.80q: %s", ErrInvalidOwner, name, wrong[0])
	}

	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// ownerOf returns the owner that the newest state names, and the zero value when there is none.
func ownerOf(c *core.Change) (types.NamespacedName, error) {
	value, found := c.New.Annotation(OwnerAnnotation)
	if !found {
		value, found = c.Old.Annotation(OwnerAnnotation)
	}

	if !found {
		return types.NamespacedName{}, nil
	}

	return ParseOwner(value)
}
