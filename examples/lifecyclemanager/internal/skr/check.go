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
// names each of these. The kind of an object may be defined by another one.
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
		var err error
		namespaced, found, err = r.scopeOf(kind)
		if err != nil {
			return "", err
		}
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

// scopeOf reports whether the objects of a kind have a namespace, and whether there is such a kind.
func (r *Runtime) scopeOf(kind schema.GroupVersionKind) (namespaced, found bool, err error) {
	mapping, err := r.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	return mapping.Scope.Name() == meta.RESTScopeNameNamespace, true, nil
}

// Possible returns the objects of an inventory that the runtime can have. Others were never made:
// they count as gone. An object of the cluster loses its namespace, as it did when it was made.
func (r *Runtime) Possible(inventory []*unstructured.Unstructured) (possible []*unstructured.Unstructured, err error) {
	for _, object := range inventory {
		namespaced, found, err := r.scopeOf(object.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		if !found || object.GetName() == "" || namespaced && object.GetNamespace() == "" {
			continue
		}
		if !namespaced {
			object.SetNamespace("")
		}
		possible = append(possible, object)
	}
	return possible, nil
}
