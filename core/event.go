package core

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Operation is the write behind a change, in the words of the Kubernetes admission API.
type Operation string

// The operations of admission.k8s.io/v1.
const (
	OperationCreate  Operation = "CREATE"
	OperationUpdate  Operation = "UPDATE"
	OperationDelete  Operation = "DELETE"
	OperationConnect Operation = "CONNECT"
)

// Field is the part of an object that a watch is about.
type Field string

// The fields that can be watched.
const (
	FieldSpec   Field = "spec"
	FieldStatus Field = "status"
)

// WatchEvent says where to look: at one object or, as a resync, at the whole runtime. It is a hint
// and never the truth: a receiver reads the object again. Events may merge, but must not vanish.
type WatchEvent struct {
	// Resync asks to look at the whole runtime. A resync stands in for everything that may have
	// been missed; it has no Watched.
	Resync bool
	// Owner is the object in the control plane that represents the runtime. Contract v1 needs it.
	// Contracts v2 and v3 identify the runtime by its certificate, and Owner may be empty.
	Owner types.NamespacedName
	// Watched is the object that changed. Its Namespace is empty for a cluster-scoped object.
	Watched types.NamespacedName
	// WatchedGVK is the kind of Watched.
	WatchedGVK schema.GroupVersionKind

	// Operation, Field, Generation and Time describe the newest change behind the event. They are
	// informative, no part of the [EventKey], and travel with contract v3 only.
	Operation  Operation
	Field      Field
	Generation int64
	Time       time.Time
	// TraceParent joins the event to the trace of the write that caused it (W3C Trace Context,
	// section 3.2). It is empty without a trace.
	TraceParent string

	// UID is metadata.uid of Watched. Base is the resourceVersion of the state on which the write
	// is based, 0 for a CREATE: an API server commits the write on that state only. Therefore an
	// object of that UID with a higher resourceVersion has the write, or never will. A merged event
	// has the highest Base. UID is empty if they are unknown. Contract v3 carries both.
	UID  types.UID
	Base int64
}

// EventKey identifies the object, or the runtime, that an event asks to look at. Events with equal
// keys for one manager may be merged into the newest of them.
type EventKey struct {
	Resync     bool
	Owner      types.NamespacedName
	Watched    types.NamespacedName
	WatchedGVK schema.GroupVersionKind
}

// Key returns the key of the event.
func (e *WatchEvent) Key() EventKey {
	return EventKey{Resync: e.Resync, Owner: e.Owner, Watched: e.Watched, WatchedGVK: e.WatchedGVK}
}

// KindWord returns the word for the kind of the event in logs and metrics: "changed" or "resync".
func (e *WatchEvent) KindWord() string {
	if e.Resync {
		return "resync"
	}
	return "changed"
}
