package coretest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Memory is a [core.Forwarder] inside one process. It hands a copy of each batch to its far end,
// such as a [Recorder], and returns the answer. It is safe for concurrent use.
type Memory struct {
	farEnd core.Forwarder
	down   atomic.Bool
}

var _ core.Forwarder = (*Memory)(nil)

// NewMemory returns a forwarder to farEnd.
func NewMemory(farEnd core.Forwarder) *Memory { return &Memory{farEnd: farEnd} }

// SetDown disconnects the far end, or connects it again. While it is disconnected, every batch
// fails with an error that wraps [core.ErrNotReady].
func (m *Memory) SetDown(down bool) { m.down.Store(down) }

// Forward implements [core.Forwarder].
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
	if err := m.farEnd.Forward(ctx, manager, clone(batch)); err != nil {
		return fmt.Errorf("forward to %s: %w", manager, err)
	}
	return nil
}
