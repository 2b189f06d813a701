package coretest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Memory is a [core.Forwarder] into the same process: it hands each event to a handler as a listener does that has
// verified it, without bytes in between. It is safe for concurrent use.
type Memory struct {
	runtime core.RuntimeID
	handler core.Handler
	down    atomic.Bool
}

var _ core.Forwarder = (*Memory)(nil)

// NewMemory returns a forwarder from runtime to handler.
func NewMemory(runtime core.RuntimeID, handler core.Handler) *Memory {
	return &Memory{runtime: runtime, handler: handler}
}

// SetDown cuts the way to the handler, or mends it: meanwhile every event fails with an error that wraps
// [core.ErrNotReady].
func (m *Memory) SetDown(down bool) { m.down.Store(down) }

// Forward hands the events over one by one, so that a refused one does not hold up the rest.
func (m *Memory) Forward(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
	failed := core.EventErrors{}

	for i := range events {
		if err := m.deliver(ctx, manager, &events[i]); err != nil {
			failed[i] = err
		}
	}

	switch {
	case len(failed) == 0:
		return nil
	case len(events) == 1:
		return failed[0]
	default:
		return failed
	}
}

func (m *Memory) deliver(ctx context.Context, manager core.Manager, event *core.WatchEvent) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("forward to %s: %w", manager, err)
	}

	if m.down.Load() {
		return fmt.Errorf("forward to %s: %w", manager, core.ErrNotReady)
	}

	d := core.Delivery{Runtime: m.runtime, Manager: manager, Event: *event, Received: time.Now()}
	if err := m.handler.Handle(ctx, d); err != nil {
		return fmt.Errorf("forward to %s: %w", manager, err)
	}

	return nil
}
