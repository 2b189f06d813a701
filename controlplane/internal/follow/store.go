package follow

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// store gets the objects from the API server.
type store struct{ *Objects }

var _ cache.TransformingStore = store{}

// Transformer drops the fields that no follower reads, before a list is complete.
func (s store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
			meta.ManagedFields = nil
		}
		return object, nil
	}
}

func (s store) Add(object any) error    { return s.set(object, false) }
func (s store) Update(object any) error { return s.set(object, false) }
func (s store) Delete(object any) error { return s.set(object, true) }
func (s store) Resync() error           { return nil }

func (s store) set(object any, gone bool) error {
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil
	}
	version := s.version(meta)
	s.mu.Lock()
	before := s.versions[meta.Name]
	if gone {
		delete(s.versions, meta.Name)
	} else {
		s.versions[meta.Name] = version
	}
	s.mu.Unlock()
	if gone || before != version {
		s.changed(meta.Name, version)
	}
	return nil
}

// Replace gets each list.
func (s store) Replace(objects []any, _ string) error {
	listed := make(map[string]string, len(objects))
	for _, object := range objects {
		if meta, ok := object.(*metav1.PartialObjectMetadata); ok {
			listed[meta.Name] = s.version(meta)
		}
	}
	s.mu.Lock()
	before := s.versions
	s.versions = maps.Clone(listed)
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	for name, version := range before {
		if now, here := listed[name]; !here {
			listed[name] = version
		} else if now == version {
			delete(listed, name)
		}
	}
	for name, version := range listed {
		s.changed(name, version)
	}
	return nil
}
