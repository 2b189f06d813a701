package core

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind says what a [WatchEvent] asks for.
type Kind uint8

// The kinds of events. The zero value is [KindChanged].
const (
	// KindChanged asks to look at one object that changed.
	KindChanged Kind = iota
	// KindResync asks to look at the whole runtime: it stands in for everything that may have been missed.
	KindResync
	// KindHeartbeat says that a runtime is still here, and how it fares. It asks for nothing: no handler gets it.
	KindHeartbeat
)

// String returns the word of the kind that logs and metrics use.
func (k Kind) String() string {
	switch k {
	case KindChanged:
		return "changed"
	case KindResync:
		return "resync"
	case KindHeartbeat:
		return "heartbeat"
	default:
		return "unknown"
	}
}

// Operation is what happened to an object, in the words of the Kubernetes admission API.
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

// WatchEvent is the notification that leaves a runtime. It is a hint to look, never the truth itself: a receiver reads
// the object again. Events may therefore merge, but must not vanish.
type WatchEvent struct {
	// Kind says what is asked for. A resync has no Watched.
	Kind Kind
	// Owner is the object in the control plane that stands for the runtime. Contract v1 needs it; v2 and v3 know the
	// runtime from its certificate, and it may be empty.
	Owner types.NamespacedName
	// Watched is the object that changed; its Namespace is empty for a cluster-scoped one.
	Watched types.NamespacedName
	// WatchedGVK is the kind of Watched.
	WatchedGVK schema.GroupVersionKind

	// Operation, Field, Generation and Time describe the newest change behind this event. They are informative, not
	// part of its [EventKey], and travel with contract v3 only.
	Operation  Operation
	Field      Field
	Generation int64
	Time       time.Time

	// Source is the runtime that the sender claims to be, empty when the contract carries no claim (v1, v2). A listener
	// compares it with the certificate.
	Source RuntimeID
	// ID tells the event from all others of its source. It is set when the event is first sent, and kept when it is
	// sent again.
	ID string
	// Epoch is one life of one agent process, and Sequence the running number, from 1, of what that process sent to
	// the manager: a receiver sees a gap. Both are set and kept as ID is.
	Epoch    string
	Sequence uint64
	// TraceParent joins the event to the trace of the write that caused it (W3C Trace Context, section 3.2), if there
	// is one.
	TraceParent string
	// Heartbeat is what a KindHeartbeat says, and nil otherwise.
	Heartbeat *Heartbeat
}

// EventKey identifies what an event asks to look at. Events to one manager with equal keys may be merged into the
// newest of them.
type EventKey struct {
	Kind       Kind
	Owner      types.NamespacedName
	Watched    types.NamespacedName
	WatchedGVK schema.GroupVersionKind
}

// Key returns what the event asks to look at.
func (e *WatchEvent) Key() EventKey {
	return EventKey{Kind: e.Kind, Owner: e.Owner, Watched: e.Watched, WatchedGVK: e.WatchedGVK}
}
