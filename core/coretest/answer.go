package coretest

import (
	"context"
	"errors"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// answer decides the answer of a [Recorder] to a call.
type answer = func(ctx context.Context, batch core.Batch) error

// accept acknowledges everything.
func accept(context.Context, core.Batch) error { return nil }

// refuse fails every call with err.
func refuse(err error) answer {
	return func(context.Context, core.Batch) error { return err }
}

// eventError returns the error of one event in an answer.
func eventError(err error, index int) error {
	if some, ok := errors.AsType[core.EventErrors](err); ok {
		return some[index]
	}
	return err
}
