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
		memory := coretest.NewMemory(farEnd)
		return coretest.ForwarderHarness{Forwarder: memory, Disconnect: func() { memory.SetDown(true) }}
	}, coretest.ForwarderOptions{})
}

// TestNarrowTransportIsAForwarder shows that a transport may carry little, and cut batches.
func TestNarrowTransportIsAForwarder(t *testing.T) {
	t.Parallel()
	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		narrow := &narrow{farEnd: farEnd}
		return coretest.ForwarderHarness{Forwarder: narrow, Disconnect: func() { narrow.down.Store(true) }}
	}, coretest.ForwarderOptions{
		WithoutOwner: true, WithoutNumbers: true, WithoutDetails: true, Unsendable: &core.WatchEvent{},
	})
}

// narrow is a transport for three events at once, without owners, numbers and details. It cannot
// carry an event without name.
type narrow struct {
	farEnd *coretest.Recorder
	down   atomic.Bool
}

func (n *narrow) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if len(batch.Events) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if n.down.Load() {
		return core.ErrNotReady
	}
	sent, failed := n.encode(batch.Events)
	if len(sent) == 0 {
		return failed
	}
	body := core.Batch{}
	for _, i := range sent {
		body.Events = append(body.Events, narrowed(&batch.Events[i].WatchEvent))
	}
	return joined(n.farEnd.Forward(ctx, manager, body), sent, failed)
}

// encode returns the indexes of the events that fit, and names the others.
func (n *narrow) encode(events []core.Numbered) (sent []int, failed core.EventErrors) {
	const most = 3
	failed = core.EventErrors{}
	for i := range events {
		switch {
		case len(sent) == most:
			failed[i] = core.ErrNotSent
		case !events[i].Resync && events[i].Watched.Name == "":
			failed[i] = coretest.Refusal{Permanent: true, Label: "unsendable"}.Err()
		default:
			sent = append(sent, i)
		}
	}
	return sent, failed
}

func narrowed(event *core.WatchEvent) core.Numbered {
	return core.Numbered{WatchEvent: core.WatchEvent{
		Resync: event.Resync, Watched: event.Watched, WatchedGVK: event.WatchedGVK,
	}}
}

// joined returns the answer to the sent events together with the failures of the others.
func joined(err error, sent []int, failed core.EventErrors) error {
	some, partial := errors.AsType[core.EventErrors](err)
	if err != nil && !partial {
		return err
	}
	for i, err := range some {
		failed[sent[i]] = err
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

func TestMemorySharesNoBatchWithItsFarEnd(t *testing.T) {
	t.Parallel()
	var got core.Batch
	memory := coretest.NewMemory(core.ForwarderFunc(func(_ context.Context, _ core.Manager, b core.Batch) error {
		got = b
		return nil
	}))
	sent := core.NewBatch(core.WatchEvent{Watched: types.NamespacedName{Name: "a"}})
	sent.Heartbeat = &core.Heartbeat{Dropped: map[string]int64{"a": 1}, CAFingerprints: []string{"a"}}
	if err := memory.Forward(t.Context(), "m", sent); err != nil {
		t.Fatal(err)
	}
	clear(sent.Events)
	clear(sent.Heartbeat.Dropped)
	clear(sent.Heartbeat.CAFingerprints)
	beat := got.Heartbeat
	if got.Events[0].Watched.Name != "a" || beat.Dropped["a"] != 1 || !slices.Equal(beat.CAFingerprints, []string{"a"}) {
		t.Errorf("the far end sees later changes of the batch: %+v", got)
	}
}
