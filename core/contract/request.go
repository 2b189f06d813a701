package contract

import (
	"errors"
	"maps"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Request is an encoded batch, and the part of the batch that it carries.
type Request struct {
	// Body is the encoded request. It is nil if no event of the batch can be sent.
	Body []byte
	// Sent maps each event in Body, in order, to its index in the batch.
	Sent []int
	// Heartbeat reports whether Body ends with the heartbeat.
	Heartbeat bool
	// Failed contains the events that Body does not carry. An event that the contract cannot
	// express has a permanent error with the reason malformed. An event that does not fit has the
	// error [core.ErrNotSent]. The heartbeat has the index len(batch.Events). It is sent only
	// together with all events of the batch. With a contract without heartbeats, Failed does not
	// contain the heartbeat.
	Failed core.EventErrors
}

func (r *Request) failEvent(index int, err error) {
	if r.Failed == nil {
		r.Failed = core.EventErrors{}
	}
	r.Failed[index] = err
}

func (r *Request) failFrom(first, end int) {
	for i := first; i < end; i++ {
		r.failEvent(i, core.ErrNotSent)
	}
}

// Elements returns the number of elements in the body: events and heartbeats.
func (r *Request) Elements() int {
	if r.Heartbeat {
		return len(r.Sent) + 1
	}
	return len(r.Sent)
}

// Index returns the index, in a batch with that number of events, of an element of the body.
func (r *Request) Index(element, events int) int {
	if element < len(r.Sent) {
		return r.Sent[element]
	}
	return events
}

// Unsendable replaces the errors of the events that the contract cannot express. An event that did
// not fit keeps [core.ErrNotSent] and is sent with the next batch.
func (r *Request) Unsendable(permanent func(err error) error) {
	for i, err := range r.Failed {
		if !errors.Is(err, core.ErrNotSent) {
			r.Failed[i] = permanent(err)
		}
	}
}

// Result adds the errors of the events that were not sent (Failed) to err, the result of the events
// that were sent.
func (r *Request) Result(err error) error {
	refused, partial := errors.AsType[core.EventErrors](err)
	switch {
	case len(r.Failed) == 0, err != nil && !partial:
		return err
	case len(refused) == 0:
		return r.Failed
	}

	all := maps.Clone(r.Failed)
	maps.Copy(all, refused)
	return all
}
