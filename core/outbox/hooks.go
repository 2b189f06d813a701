package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Outcome is what became of an event when it was offered to an outbox.
type Outcome string

// The outcomes of [Outbox.Accept].
const (
	// Accepted means that the event is kept until it is acknowledged.
	Accepted Outcome = "accepted"
	// Coalesced means that an event with an equal key was waiting, and stands for this one, too.
	Coalesced Outcome = "coalesced"
	// Dropped means that there is no room for another key. A resync of the manager stands in for the event.
	Dropped Outcome = "dropped"
)

// The reasons for dropping an event that the outbox gives itself. Other reasons are those of the error with which a forwarder
// refused it for good.
const (
	// ReasonOverflow means that the bound on distinct keys was reached.
	ReasonOverflow = "overflow"
	// ReasonNoOwner means that a resync is for owners, and that no event has named one yet.
	ReasonNoOwner = "no_owner"
	// ReasonShutdown means that the process ended before the event could be delivered.
	ReasonShutdown = "shutdown"
)

// Counts are the fates of events. Accepted = Delivered + Coalesced + the sum of Dropped + Pending, at all times.
type Counts struct {
	// Accepted is how many events were offered, whatever became of them, and how many resyncs and second looks the outbox added. A second
	// look counts from the time on at which it is due; one that a newer event replaces before that never does.
	Accepted int64
	// Delivered is how many were acknowledged by the control plane.
	Delivered int64
	// Coalesced is how many are represented by another event with the same key.
	Coalesced int64
	// Dropped is how many were given up, by reason.
	Dropped map[string]int64
	// Pending is how many wait to be sent or acknowledged.
	Pending int64
}

// Hooks are optional callbacks of an outbox. They are called while its lock is held: they must return at once, and must not call the
// outbox.
type Hooks struct {
	// Counted is called for every step in the life of an event with the change of the counts, in which Pending may
	// be negative. Each change is balanced by itself, so that a sum of them is balanced at all times. Dropped is
	// only valid during the call.
	Counted func(manager core.Manager, change Counts)
	// Attempted is called after each call of the forwarder, without the lock, with the number of events, the time that it took and its
	// error.
	Attempted func(manager core.Manager, events int, took time.Duration, err error)
}
