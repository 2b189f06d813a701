package installation

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// found are the objects in the runtime, as this visit has read them. A missing object is nil.
type found struct {
	// These four decide which installer owns the runtime, and which parts the runtime lacks.
	namespace, configuration, managers, role *unstructured.Unstructured
	// others contains the metadata of the objects that this visit applies, except the four.
	others map[identity]*metav1.PartialObjectMetadata
}

// wholeOf returns the object with that name, if it is one of the four that were read with their
// content.
func (f *found) wholeOf(object client.Object) *unstructured.Unstructured {
	for _, live := range []*unstructured.Unstructured{f.namespace, f.configuration, f.managers, f.role} {
		if live != nil && identityOf(live) == identityOf(object) {
			return live
		}
	}
	return nil
}

// liveOf returns the object with that name as this visit has read it, nil for a missing object.
func (f *found) liveOf(object client.Object) client.Object {
	whole := f.wholeOf(object)
	if whole != nil {
		return whole
	}

	metadata := f.others[identityOf(object)]
	if metadata == nil {
		return nil // And no interface with a nil in it.
	}
	return metadata
}

// decidingObjects are the objects that decide which installer owns the runtime. An existing
// namespace may be foreign.
func (f *found) decidingObjects() (objects []client.Object) {
	for _, live := range []*unstructured.Unstructured{f.configuration, f.managers, f.role} {
		if live != nil {
			objects = append(objects, live)
		}
	}
	return objects
}

// otherObjects are the objects in others, sorted by kind and name.
func (f *found) otherObjects() (objects []client.Object) {
	for _, live := range f.others {
		objects = append(objects, live)
	}

	slices.SortFunc(objects, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(kindOf(a), kindOf(b)), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects
}

// namespaceEnds reports whether the namespace is being deleted. No object can be created there
// then.
func (f *found) namespaceEnds() bool {
	return f.namespace != nil && f.namespace.GetDeletionTimestamp() != nil
}
