package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// cutting returns a forwarder that sends only the beginning of a batch.
func cutting(limit int) func(p *plane) core.Forwarder {
	return func(p *plane) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			unsent := core.EventErrors{}
			if len(batch.Events) > limit {
				for i := limit; i < len(batch.Events); i++ {
					unsent[i] = core.ErrNotSent
				}
				if batch.Heartbeat != nil {
					unsent[len(batch.Events)] = fmt.Errorf("heartbeat: %w", core.ErrNotSent)
				}
				batch.Events, batch.Heartbeat = batch.Events[:limit], nil
			}
			if err := p.Forward(ctx, manager, batch); err != nil || len(unsent) == 0 {
				return err
			}
			return unsent
		})
	}
}

// Events that stay behind when a batch is cut keep their order and their numbers. A heartbeat has a number that the
// receiver has seen, and comes as soon as the batch is not cut any more.
func TestHeartbeatFollowsItsNumbers(t *testing.T) {
	opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: second, Settle: second}
	inBubble(t, scene{opts: opts, via: cutting(2)}, func(w *world) {
		w.writeMany(20, "object-", 0)
		time.Sleep(second + 500*ms)
		var seen uint64
		for _, batch := range w.taken() {
			for _, event := range batch.Events {
				seen++
				if event.Sequence != seen {
					t.Errorf("event %d arrived as number %d", event.Sequence, seen)
				}
			}
			if beat := batch.Heartbeat; beat != nil && beat.Sequence != seen {
				t.Errorf("heartbeat names %d, but %d was the last to arrive", beat.Sequence, seen)
			}
		}
		if beats := w.beats(); len(beats) != 2 || beats[1].Sequence != 20 {
			t.Errorf("heartbeats %+v, want one at the start and one after the 20 events", beats)
		}
	})
}

// A forwarder that sends nothing at all is not called without a wait.
func TestBatchOfWhichNothingWasSentIsAFailure(t *testing.T) {
	opts := outbox.Options{
		Epoch: "e", MaxBatch: 500, Managers: []core.Manager{kyma}, HeartbeatInterval: second, DrainTimeout: -1,
	}
	for name, events := range map[string]int{"events": 5, "heartbeat": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
				unsent := core.EventErrors{}
				for i := range len(batch.Events) + 1 {
					unsent[i] = core.ErrNotSent
				}
				return unsent
			}}, func(w *world) {
				w.writeMany(events, "object-", 0)
				time.Sleep(10 * time.Minute)
				w.wantBetween(40, len(w.seen()), 80, "calls in 10 min, about one in 10 s")
			})
		})
	}
}
