// Package coretest provides the conformance suites for adapters of the ports in core, and fakes for
// tests.
//
// [TestForwarder], [TestReceiver] and [TestVerifier] are the suites: an adapter calls a suite from
// one of its tests. [Recorder] is a far end: it records each batch and delivery and answers as its
// script says.
package coretest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Call is one call to a [Recorder].
type Call struct {
	// Runtime is the sender of a delivery. It is empty for a forwarded batch.
	Runtime core.RuntimeID
	// Manager is the operator that the batch is for.
	Manager core.Manager
	// Batch is a copy of the batch that arrived. For a call of Handle, Batch contains only the
	// delivered event.
	Batch core.Batch
	// Returned reports whether the call was answered. Err is the answer.
	Returned bool
	Err      error
}

func (c *Call) acknowledged() []core.WatchEvent {
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

// Recorder is a [core.Forwarder] and a [core.Handler] that records its calls. It acknowledges
// everything unless its script says otherwise. The zero value is ready for use. It is safe for
// concurrent use, including in a bubble of testing/synctest.
type Recorder struct {
	mu      sync.Mutex
	calls   []Call
	always  answer
	next    []answer
	changed chan struct{} // closed at the next change, nil without a waiting call
}

// Always sets the function that answers all further calls. The function may block until ctx ends.
// Nil acknowledges all calls.
func (r *Recorder) Always(answer func(ctx context.Context, batch core.Batch) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.always = answer
}

// Next adds functions that answer the next calls, one for each, in this order. Later calls get the
// answer of [Recorder.Always].
func (r *Recorder) Next(answers ...func(ctx context.Context, batch core.Batch) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = append(r.next, answers...)
}

// Forward records the batch and answers as the script says.
func (r *Recorder) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	return r.recordCall(ctx, Call{Manager: manager, Batch: clone(batch)})
}

// Handle records the delivery and answers as the script says.
func (r *Recorder) Handle(ctx context.Context, d core.Delivery) error {
	return r.recordCall(ctx, Call{Runtime: d.Runtime, Manager: d.Manager, Batch: core.NewBatch(d.Event)})
}

func (r *Recorder) recordCall(ctx context.Context, call Call) error {
	r.mu.Lock()
	index := len(r.calls)
	answer := r.always
	if len(r.next) > 0 {
		answer = r.next[0]
		r.next = r.next[1:]
	}
	r.calls = append(r.calls, call)
	r.signalChange()
	r.mu.Unlock()
	var err error
	if answer != nil {
		err = answer(ctx, clone(call.Batch))
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	r.calls[index].Returned = true
	r.calls[index].Err = err
	r.signalChange()
	return err
}

func (r *Recorder) signalChange() {
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
			events = append(events, calls[i].acknowledged()...)
		}
	}
	return events
}

// waitUntil blocks until done returns true for the calls so far. It fails with the cause of ctx
// when ctx ends before. done is called again after each change. It must not call r or change the
// calls.
func (r *Recorder) waitUntil(ctx context.Context, done func(calls []Call) bool) error {
	for {
		r.mu.Lock()
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		calls := slices.Clone(r.calls)
		changed := r.changed
		r.mu.Unlock()
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
	return r.waitUntil(ctx, func(calls []Call) bool { return len(calls) >= n })
}

// WaitAcknowledged blocks until at least n events were accepted for a manager.
func (r *Recorder) WaitAcknowledged(ctx context.Context, manager core.Manager, n int) error {
	return r.waitUntil(ctx, func(calls []Call) bool { return len(acknowledged(calls, manager)) >= n })
}

type answer = func(ctx context.Context, batch core.Batch) error

func refuse(err error) answer {
	return func(context.Context, core.Batch) error { return err }
}

func eventError(err error, index int) error {
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		return some[index]
	}
	return err
}

// clone returns a batch that shares no memory with the original.
func clone(batch core.Batch) core.Batch {
	batch.Events = slices.Clone(batch.Events)
	if batch.Heartbeat != nil {
		heartbeat := *batch.Heartbeat
		heartbeat.Dropped = maps.Clone(heartbeat.Dropped)
		heartbeat.CAFingerprints = slices.Clone(heartbeat.CAFingerprints)
		batch.Heartbeat = &heartbeat
	}
	return batch
}

// Refusal is a refusal with every classification that core knows, for scripts.
type Refusal struct {
	// Permanent reports that no later attempt can succeed.
	Permanent bool
	// After is the wait that the receiver requests; 0: none.
	After time.Duration
	// Label is the metric label.
	Label string
	// Cause is the error that the refusal wraps; nil: none.
	Cause error
}

// Err returns the refusal as an error.
func (r Refusal) Err() error { return &refusal{r} }

type refusal struct{ Refusal }

func (r *refusal) Error() string {
	if r.Cause == nil {
		return "scripted refusal: " + r.Label
	}
	return "scripted refusal: " + r.Label + ": " + r.Cause.Error()
}

func (r *refusal) Unwrap() error             { return r.Cause }
func (r *refusal) Retryable() bool           { return !r.Permanent }
func (r *refusal) RetryAfter() time.Duration { return r.After }
func (r *refusal) Reason() string            { return r.Label }
