package coretest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Memory is a [core.Forwarder] into the same process: it hands each event to a handler, as a listener does
// after verification, without bytes in between. Heartbeats end here. It is safe for concurrent use.
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

// SetDown breaks the path to the handler, or mends it. While it is broken, every batch fails with an
// error that wraps [core.ErrNotReady].
func (m *Memory) SetDown(down bool) { m.down.Store(down) }

// Forward hands the events over one by one: a refused event does not hold up the others.
func (m *Memory) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.IsEmpty() {
		return nil
	}

	if err := ctx.Err(); err != nil {
		return fmt.Errorf("forward to %s: %w", manager, err)
	}

	if m.down.Load() {
		return fmt.Errorf("forward to %s: %w", manager, core.ErrNotReady)
	}

	failed := core.EventErrors{}

	for i := range batch.Events {
		d := core.Delivery{Runtime: m.runtime, Manager: manager, Event: batch.Events[i].WatchEvent, Received: time.Now()}
		if err := m.handler.Handle(ctx, d); err != nil {
			failed[i] = fmt.Errorf("forward to %s: %w", manager, err)
		}
	}

	if len(failed) == 0 {
		return nil
	}

	return failed
}
