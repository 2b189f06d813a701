package coretest

import (
	"context"
	"errors"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Answer decides the answer of a [Recorder] to a call. It may block until ctx ends.
type Answer func(ctx context.Context, batch core.Batch) error

// Accept acknowledges everything.
func Accept(context.Context, core.Batch) error { return nil }

// Hang blocks until ctx ends, and then fails with its cause.
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

// eventError returns the error of one event in an answer.
func eventError(err error, index int) error {
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		return some[index]
	}
	return err
}
