package outbox

import (
	"maps"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The drop reasons of an outbox. A permanent error of the forwarder has the reason of
// [core.ReasonOf]. [core.ReasonUnknownManager] means that the lane of a manager was evicted because
// the control plane never knew the manager. Nothing replaces its events.
const (
	// ReasonOverflow means that [Options].MaxKeys or MaxBytes was reached. A resync replaces the
	// events.
	ReasonOverflow core.Reason = "overflow"
	// ReasonTooManyManagers means that [Options].MaxManagers was reached. Nothing replaces the
	// events.
	ReasonTooManyManagers core.Reason = "too_many_managers"
	// ReasonNoOwner means that a resync needs an owner, but no event has named an owner yet.
	ReasonNoOwner core.Reason = "no_owner"
	// ReasonShutdown means that the outbox ended, or that the event arrived after its end.
	ReasonShutdown core.Reason = "shutdown"
)

// Counts counts the fates of events. At all times, Accepted = Delivered + Coalesced + the sum of
// Dropped + Pending.
type Counts struct {
	// Accepted counts all events that were offered, and the resyncs and resends that the outbox
	// added. A resend counts once it is due.
	Accepted int64
	// Delivered counts the events that the control plane acknowledged.
	Delivered int64
	// Coalesced counts the events that another event with the same key replaced.
	Coalesced int64
	// Dropped counts the events that were given up, by reason: a reason of this package or of
	// [core.ReasonOf].
	Dropped map[core.Reason]int64
	// Pending is the number of events that wait to be sent or acknowledged.
	Pending int64
}

func newCounts() Counts { return Counts{Dropped: make(map[core.Reason]int64)} }

func (c *Counts) clone() Counts {
	copied := *c
	copied.Dropped = maps.Clone(c.Dropped)
	return copied
}

// addAll sums up.
func (c *Counts) addAll(other Counts) {
	c.Accepted += other.Accepted
	c.Delivered += other.Delivered
	c.Coalesced += other.Coalesced
	c.Pending += other.Pending
	for reason, n := range other.Dropped {
		c.Dropped[reason] += n
	}
}

// refuseEvent counts an offered event that is dropped.
func (c *Counts) refuseEvent(reason core.Reason) core.Outcome {
	c.Accepted++
	c.Dropped[reason]++
	return core.Dropped
}

// giveUpEvents counts pending events that are dropped.
func (c *Counts) giveUpEvents(n int64, reason core.Reason) {
	c.Pending -= n
	c.Dropped[reason] += n
}
