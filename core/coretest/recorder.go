package coretest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Call is one call that a [Recorder] got.
type Call struct {
	// Runtime is the sender of a delivery; empty when events were forwarded.
	Runtime core.RuntimeID
	// Manager is whom the events are for.
	Manager core.Manager
	// Batch is a copy of the batch that arrived. A delivery is a batch of one event.
	Batch core.Batch
	// Returned is whether the call was answered, and Err the answer.
	Returned bool
	Err      error
}

// Acknowledged returns the events of the call that were accepted.
func (c *Call) Acknowledged() []core.WatchEvent {
	if !c.Returned {
		return nil
	}

	var accepted []core.WatchEvent

	for i := range c.Batch.Events {
		if eventError(c.Err, i) == nil {
			accepted = append(accepted, c.Batch.Events[i].WatchEvent)
		}
	}

	return accepted
}

// Recorder is a [core.Forwarder] and a [core.Handler] that writes down what it gets. It acknowledges everything until
// its script says otherwise. The zero value is ready for use; it is safe for concurrent use, also in a bubble of
// testing/synctest.
type Recorder struct {
	mu      sync.Mutex
	calls   []Call
	always  Answer
	next    []Answer
	changed chan struct{} // closed at the next change, nil while nobody waits
}

// Answer decides what a [Recorder] answers to a call. It may block until ctx ends.
type Answer func(ctx context.Context, batch core.Batch) error

// Accept acknowledges everything.
func Accept(context.Context, core.Batch) error { return nil }

// Hang answers nothing until the caller gives up, and then fails as its context says.
func Hang(ctx context.Context, _ core.Batch) error {
	<-ctx.Done()

	return context.Cause(ctx)
}

// Refuse fails every call with err.
func Refuse(err error) Answer {
	return func(context.Context, core.Batch) error { return err }
}

// RefuseSome fails the events that match with err, and acknowledges the others: the answer is a
// [core.EventErrors].
func RefuseSome(err error, match func(event *core.WatchEvent) bool) Answer {
	return func(_ context.Context, batch core.Batch) error {
		failed := core.EventErrors{}

		for i := range batch.Events {
			if match(&batch.Events[i].WatchEvent) {
				failed[i] = err
			}
		}

		if len(failed) == 0 {
			return nil
		}

		return failed
	}
}

// Always makes r give this answer from now on.
func (r *Recorder) Always(answer Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.always = answer
}

// Next adds answers to be given once each, in this order, before that of [Recorder.Always] counts again.
func (r *Recorder) Next(answers ...Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.next = append(r.next, answers...)
}

// Forward writes the events down and answers as the script says.
func (r *Recorder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	return r.take(ctx, Call{Manager: manager, Batch: clone(batch)})
}

// Handle writes the delivery down and answers as the script says.
func (r *Recorder) Handle(ctx context.Context, d core.Delivery) error {
	return r.take(ctx, Call{Runtime: d.Runtime, Manager: d.Manager, Batch: core.NewBatch(d.Event)})
}

func (r *Recorder) take(ctx context.Context, call Call) error {
	answer, index := r.arrived(call)

	err := answer(ctx, clone(call.Batch))

	r.mu.Lock()
	defer r.mu.Unlock()

	r.calls[index].Returned, r.calls[index].Err = true, err
	r.wake()

	return err
}

func clone(batch core.Batch) core.Batch {
	batch.Events = slices.Clone(batch.Events)

	if batch.Heartbeat != nil {
		beat := *batch.Heartbeat
		batch.Heartbeat = &beat
	}

	return batch
}

func (r *Recorder) arrived(call Call) (answer Answer, index int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.calls = append(r.calls, call)
	r.wake()

	return r.answer(), len(r.calls) - 1
}

func (r *Recorder) answer() Answer {
	if len(r.next) > 0 {
		answer := r.next[0]
		r.next = r.next[1:]

		return answer
	}

	if r.always != nil {
		return r.always
	}

	return Accept
}

func (r *Recorder) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// Calls returns all calls so far, answered or not, in the order of their arrival.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.calls)
}

// Acknowledged returns the events that were accepted for a manager, in the order of their arrival.
func (r *Recorder) Acknowledged(manager core.Manager) []core.WatchEvent {
	return acknowledged(r.Calls(), manager)
}

func acknowledged(calls []Call, manager core.Manager) (events []core.WatchEvent) {
	for i := range calls {
		if calls[i].Manager == manager {
			events = append(events, calls[i].Acknowledged()...)
		}
	}

	return events
}

// Wait blocks until done returns true for the calls so far, and returns the reason when ctx ends before. done is
// called again after each change; it must not call r or change the calls.
func (r *Recorder) Wait(ctx context.Context, done func(calls []Call) bool) error {
	for {
		calls, changed := r.watch()
		if done(calls) {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WaitCalls blocks until at least n calls have arrived, answered or not.
func (r *Recorder) WaitCalls(ctx context.Context, n int) error {
	return r.Wait(ctx, func(calls []Call) bool { return len(calls) >= n })
}

// WaitAcknowledged blocks until at least n events were accepted for a manager.
func (r *Recorder) WaitAcknowledged(ctx context.Context, manager core.Manager, n int) error {
	return r.Wait(ctx, func(calls []Call) bool { return len(acknowledged(calls, manager)) >= n })
}

func (r *Recorder) watch() (calls []Call, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.changed == nil {
		r.changed = make(chan struct{})
	}

	return slices.Clone(r.calls), r.changed
}

// Refusal is an error with every classification that core knows, for scripts.
type Refusal struct {
	// Permanent is whether another attempt is hopeless.
	Permanent bool
	// After is how long the sender should wait, 0 for no advice.
	After time.Duration
	// Label is the metric label.
	Label string
	// Cause is what [errors.Is] finds, nil for nothing.
	Cause error
}

// Error names the label and the cause.
func (r *Refusal) Error() string {
	if r.Cause == nil {
		return "scripted refusal: " + r.Label
	}

	return "scripted refusal: " + r.Label + ": " + r.Cause.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

// Retryable reports whether another attempt can succeed.
func (r *Refusal) Retryable() bool { return !r.Permanent }

// RetryAfter returns the advised wait.
func (r *Refusal) RetryAfter() time.Duration { return r.After }

// Reason returns the label.
func (r *Refusal) Reason() string { return r.Label }

// eventError returns what an answer says about one event.
func eventError(err error, index int) error {
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		return some[index]
	}

	return err
}
