package contract

import (
	"cmp"
	"crypto/rand"
	"errors"
	"maps"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Claim returns the batch as a runtime sends it: with its name, unless the batch has one, and with
// IDs for events without one, as CloudEvents require. An outbox with an epoch gives an ID to each
// event. The batch of the caller is not changed.
func Claim(batch core.Batch, runtime core.RuntimeID) core.Batch {
	batch.Source = cmp.Or(batch.Source, runtime)
	if slices.ContainsFunc(batch.Events, func(e core.Numbered) bool { return e.ID == "" }) {
		batch.Events = slices.Clone(batch.Events)
		for i := range batch.Events {
			batch.Events[i].ID = cmp.Or(batch.Events[i].ID, rand.Text())
		}
	}
	return batch
}

// Elements returns the number of elements in the body, which is that of the events and heartbeats.
func (r *Request) Elements() int {
	if r.Heartbeat {
		return len(r.Sent) + 1
	}
	return len(r.Sent)
}

// Index returns the index in a batch with that many events of an element of the body.
func (r *Request) Index(element, events int) int {
	if element < len(r.Sent) {
		return r.Sent[element]
	}
	return events
}

// Unsendable replaces the errors of the events that the contract cannot express. An event without
// room keeps [core.ErrNotSent]: it is sent with the next batch.
func (r *Request) Unsendable(permanent func(err error) error) {
	for i, err := range r.Failed {
		if !errors.Is(err, core.ErrNotSent) {
			r.Failed[i] = permanent(err)
		}
	}
}

// Result joins the events that were not sent with the result of the others.
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
