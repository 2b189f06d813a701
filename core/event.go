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

// Field is the part of an object that a watch observes.
type Field string

// The fields that can be watched.
const (
	FieldSpec   Field = "spec"
	FieldStatus Field = "status"
)

// WatchEvent names the object to reconcile or, for a resync, the whole runtime. It is a hint and
// never the truth: a receiver reads the object again. Events may merge, but must not vanish.
type WatchEvent struct {
	// Resync asks to reconcile the whole runtime. A resync replaces everything that may have been
	// missed; it has no Watched.
	Resync bool
	// Owner is the object in the control plane that represents the runtime. Contract v1 needs it.
	// Contracts v2 and v3 identify the runtime by its certificate, and Owner may be empty.
	Owner types.NamespacedName
	// Watched is the object that changed. Its Namespace is empty for a cluster-scoped object.
	Watched types.NamespacedName
	// WatchedGVK is the kind of Watched.
	WatchedGVK schema.GroupVersionKind

	// Operation, Field, Generation and Time describe the newest change behind the event. They are
	// informative, are not part of the [EventKey], and travel only with contract v3.
	Operation  Operation
	Field      Field
	Generation int64
	Time       time.Time
	// TraceParent joins the event to the trace of the write that caused it (W3C Trace Context,
	// section 3.2). It is empty without a trace.
	TraceParent string

	// UID is metadata.uid of Watched. Base is the resourceVersion of the state on which the write
	// is based, 0 for a CREATE: an API server commits the write only on that state. Therefore an
	// object of that UID with a higher resourceVersion contains the write, or never will. A merged
	// event has the highest Base. UID is empty if UID and Base are unknown. Contract v3 carries
	// both.
	UID  types.UID
	Base int64
}

// EventKey identifies the object or the runtime that an event asks the operator to reconcile. If
// several events for one manager have the same key, the newest may replace the others.
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

// Batch is one message from a runtime to a manager. It contains numbered events, at most one
// heartbeat, and the sender that the message claims.
type Batch struct {
	// Source is the runtime that the sender claims to be. It is empty when the contract carries no
	// claim (v1, v2). A listener compares it with the certificate.
	Source RuntimeID
	// Epoch identifies one run of one agent process. It is empty when the events are not numbered
	// (v1, v2).
	Epoch string
	// Events are in the order of their sequence, unless an event is sent again.
	Events []Numbered
	// Heartbeat follows the events: its Sequence includes the events of this batch. Nil: none.
	Heartbeat *Heartbeat
}

// Numbered is an event with its place in the sequence of its epoch.
type Numbered struct {
	WatchEvent

	// Sequence counts, from 1, the events of an epoch to one manager, so that a receiver can detect
	// a gap. An event keeps its number when it is sent again. It is 0 without an epoch.
	Sequence uint64
	// ID is different for all events of a source with different content. An event keeps its ID when
	// it is sent again, unless a newer event or its resend was merged into it. It may be empty
	// without an epoch.
	ID string
}

// NewBatch returns a batch of events without numbers.
func NewBatch(events ...WatchEvent) Batch {
	batch := Batch{Events: make([]Numbered, len(events))}
	for i, event := range events {
		batch.Events[i].WatchEvent = event
	}
	return batch
}

// IsEmpty reports whether the batch has neither events nor a heartbeat.
func (b *Batch) IsEmpty() bool { return len(b.Events) == 0 && b.Heartbeat == nil }
