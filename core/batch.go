package core

// Batch is one message from a runtime to a manager: numbered events, at most one heartbeat, and the
// sender that both claim.
type Batch struct {
	// Source is the runtime that the sender claims to be. It is empty when the contract carries no
	// claim (v1, v2). A listener compares it with the certificate.
	Source RuntimeID
	// Epoch is one life of one agent process. It is empty when the events are not numbered (v1,
	// v2).
	Epoch string
	// Events are in the order of their sequence, unless one is sent again.
	Events []Numbered
	// Heartbeat follows the events: its Sequence includes theirs. Nil: none.
	Heartbeat *Heartbeat
}

// Numbered is an event with its place in the sequence of its epoch.
type Numbered struct {
	WatchEvent

	// Sequence counts, from 1, the events of an epoch to one manager, so that a receiver sees a
	// gap. An event keeps its number when it is sent again. It is 0 without an epoch.
	Sequence uint64
	// ID differs for all events of a source that say something different. An event keeps its ID
	// when it is sent again, unless a newer event or its resend was merged into it. It may be empty
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
