package skr

import (
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Check fails if the runtime cannot have the objects, before any of them is written. The error
// names each such object. The kind of an object may be defined by another object.
func (r *Runtime) Check(objects []*unstructured.Unstructured) error {
	defined := definedBy(objects)
	known := make(map[string]bool)

	var problems []error
	for _, object := range objects {
		problem, err := r.problemOf(object, defined)
		if err != nil {
			return err
		}

		id := fmt.Sprint(object.GroupVersionKind().GroupKind(), " ", nameOf(object))
		if problem == "" && known[id] {
			problem = "is there twice"
		}

		if problem != "" {
			problems = append(problems,
				fmt.Errorf("the ModuleTemplate is wrong: %s %q %s", object.GetKind(), nameOf(object), problem))
		}

		known[id] = true
	}

	return errors.Join(problems...)
}

// definedBy returns the kinds that definitions among the objects define, and whether their objects
// have a namespace.
func definedBy(objects []*unstructured.Unstructured) map[schema.GroupKind]bool {
	defined := make(map[schema.GroupKind]bool)
	for _, object := range objects {
		if !utils.IsCRD(object) {
			continue
		}

		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
		scope, _, _ := unstructured.NestedString(object.Object, "spec", "scope")
		defined[schema.GroupKind{Group: group, Kind: kind}] = scope == "Namespaced"
	}
	return defined
}

// problemOf returns why the runtime cannot have an object, empty if it can.
func (r *Runtime) problemOf(object *unstructured.Unstructured, defined map[schema.GroupKind]bool) (string, error) {
	kind := object.GroupVersionKind()
	if object.GetName() == "" {
		return "has no name", nil
	}

	namespaced, found := defined[kind.GroupKind()]
	if !found {
		mapping, err := r.mappingOf(kind.GroupKind(), kind.Version)
		if err != nil {
			return "", err
		}
		namespaced = isNamespaced(mapping)
		found = mapping != nil
	}

	switch {
	case !found:
		missing := kind.GroupVersion().WithKind(kind.Kind)
		return fmt.Sprintf("has a kind that the runtime does not have: %s", missing), nil
	case namespaced && object.GetNamespace() == "":
		return "has no namespace", nil
	case !namespaced && object.GetNamespace() != "":
		return "has a namespace, and its kind has none", nil
	default:
		return "", nil
	}
}

// mappingOf returns how the runtime serves a kind in one of the versions, or in any version if none
// is given. It is nil if the runtime does not serve the kind.
func (r *Runtime) mappingOf(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := r.RESTMapper().RESTMapping(kind, versions...)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	return mapping, err
}

func isNamespaced(mapping *meta.RESTMapping) bool {
	return mapping != nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace
}

// Possible returns the objects of an inventory that the runtime can have. All other objects were
// never created, and count as gone. An object of the cluster loses its namespace, as it did when it
// was made.
//
// A runtime may no longer serve the version by which an object was made. The object is still there,
// so it is returned in a version that the runtime serves.
func (r *Runtime) Possible(inventory []*unstructured.Unstructured) (possible []*unstructured.Unstructured, err error) {
	for _, object := range inventory {
		kind := object.GroupVersionKind()
		mapping, err := r.mappingOf(kind.GroupKind(), kind.Version)
		if err == nil && mapping == nil {
			mapping, err = r.mappingOf(kind.GroupKind())
		}
		if err != nil {
			return nil, err
		}

		isMissing := mapping == nil || object.GetName() == ""
		lacksNamespace := isNamespaced(mapping) && object.GetNamespace() == ""
		if isMissing || lacksNamespace {
			continue
		}

		object.SetGroupVersionKind(mapping.GroupVersionKind)
		if !isNamespaced(mapping) {
			object.SetNamespace("")
		}

		possible = append(possible, object)
	}
	return possible, nil
}
