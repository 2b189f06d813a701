package controllerruntime

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// awaitedFor is longer than the wait for the last resend: 32 s after the one before.
	awaitedFor = time.Minute
	// readFor is the time for which a read counts. Resends of one event take about a minute. Events
	// of strangers also come later. They must not keep a read for ever. An API server that was
	// restored from a backup has lower versions of the same objects.
	readFor = 2 * awaitedFor
	// maxAwaited and maxAwaitedOfRuntime bound the objects that are remembered. Each object takes
	// about 400 bytes.
	maxAwaited          = 1 << 15
	maxAwaitedOfRuntime = 256
)

// place is one object, as an event names it, for one request of its runtime. All of it must fit the
// object that a reconcile reads. A pod that can reach the webhook can send the uid of any object
// under any other name, and that says nothing about the object.
type place[request comparable] struct {
	request request
	uid     types.UID
	kind    schema.GroupKind
	name    types.NamespacedName
}

// awaited is an object with events that may be sent again. An event writes when it came, and only a
// reconcile writes the known version of the object.
type awaited struct {
	until time.Time
	// sinceOrder is the order of the first event, and deletionOrder is the order of the first
	// DELETE, 0 without a DELETE. Reads of later reconciles count.
	sinceOrder, deletionOrder uint64

	// read is the time of the last read that counts.
	read time.Time
	// version is the version of the last read that found the object, 0 if no reconcile has read it.
	version int64
	// absent means that the last read found no object of that name.
	absent bool

	// newest and base belong to the last event. A resend has the same values.
	newest time.Time
	base   int64
}

// hasReadLately reports whether a reconcile has read the write behind an event, and whether that
// read still counts.
func (a *awaited) hasReadLately(event *core.WatchEvent, now time.Time) bool {
	return now.Sub(a.read) < readFor && a.hasRead(event)
}

// hasRead reports whether a reconcile has read the write behind an event. The event decides about
// nothing but itself. Absence says less than a version, because an answer has no version of
// absence: it covers a deletion, and a write on a version that a reconcile has read before.
func (a *awaited) hasRead(event *core.WatchEvent) bool {
	if a.version > event.Base {
		return true
	}
	if !a.absent {
		return false
	}
	deleted := event.Operation == core.OperationDelete
	ended := a.version > 0 && a.version == event.Base
	return deleted || ended
}
