package coretest_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

func TestMemoryIsAForwarder(t *testing.T) {
	t.Parallel()

	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		memory := coretest.NewMemory("runtime-1", farEnd)

		return coretest.ForwarderHarness{Forwarder: memory, Disconnect: func() { memory.SetDown(true) }}
	}, coretest.ForwarderOptions{})
}

func TestRecorderIsAForwarder(t *testing.T) {
	t.Parallel()

	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		gate := &gate{farEnd: farEnd}

		return coretest.ForwarderHarness{Forwarder: gate, Disconnect: gate.close}
	}, coretest.ForwarderOptions{WithoutOwner: true, Unsendable: &core.WatchEvent{}})
}

// gate is a transport that carries whole batches, but no owners and no events without name.
type gate struct {
	farEnd *coretest.Recorder
	closed atomic.Bool
}

func (g *gate) close() { g.closed.Store(true) }

func (g *gate) Forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	if err := ctx.Err(); err != nil {
		return err
	}

	if len(events) == 0 {
		return nil
	}

	if g.closed.Load() {
		return core.ErrNotReady
	}

	refuse := coretest.RefuseSome(&coretest.Refusal{Permanent: true, Label: "unsendable"},
		func(e *core.WatchEvent) bool { return e.Watched.Name == "" })
	if err := refuse(ctx, events); err != nil {
		return g.rest(ctx, manager, events, err)
	}

	return g.farEnd.Forward(ctx, manager, withoutOwners(events))
}

func (g *gate) rest(ctx context.Context, manager core.Manager, events []core.WatchEvent, err error) error {
	failed, ok := errors.AsType[core.EventErrors](err)
	if !ok {
		return err
	}

	for i := range events {
		if failed[i] != nil {
			continue
		}

		if err := g.farEnd.Forward(ctx, manager, withoutOwners(events[i:i+1])); err != nil {
			failed[i] = err
		}
	}

	return failed
}

func withoutOwners(events []core.WatchEvent) []core.WatchEvent {
	events = slices.Clone(events)
	for i := range events {
		events[i].Owner = types.NamespacedName{}
	}

	return events
}
