package coretest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

// Cases without a verdict that a fault could change prove nothing.
func TestCasesThatProveTooLittle(t *testing.T) {
	t.Parallel()

	passes := VerifierCase{}
	cold := VerifierCase{Want: core.ErrNotReady}
	refused := VerifierCase{Want: core.ErrForbidden}
	for name, tt := range map[string]struct {
		cases  []VerifierCase
		proves bool
	}{
		"none":                  {nil, false},
		"all pass":              {[]VerifierCase{passes, passes}, false},
		"all refused":           {[]VerifierCase{refused, refused}, false},
		"some cold, no pass":    {[]VerifierCase{refused, cold}, false},
		"one of each":           {[]VerifierCase{passes, refused, cold}, true},
		"passing and cold":      {[]VerifierCase{passes, cold}, true},
		"a cold verifier alone": {[]VerifierCase{cold}, true},
	} {
		if got := proves(tt.cases); got != tt.proves {
			t.Errorf("%s: proves something: %t", name, got)
		}
	}
}

func TestChecksOfAForwarderAreItsRules(t *testing.T) {
	t.Parallel()

	var checked, ruled []string
	for _, c := range forwarderChecks() {
		checked = append(checked, c.rule)
	}

	for _, rule := range conformance.Rules() {
		if rule.End == conformance.Forwarder {
			ruled = append(ruled, rule.ID)
		}
	}

	slices.Sort(checked)
	slices.Sort(ruled)
	if diff := cmp.Diff(ruled, slices.Compact(checked)); diff != "" {
		t.Errorf("the checks of a forwarder (-rules +checks):\n%s", diff)
	}
}

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
