package coretest

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Changed returns an event about an update of the spec of an object. The group of its kind is
// "example.com". It has no owner, time or trace.
func Changed(kind, namespace, name string) core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: namespace, Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: kind},
		Operation:  core.OperationUpdate,
		Field:      core.FieldSpec,
		Generation: 2,
	}
}
