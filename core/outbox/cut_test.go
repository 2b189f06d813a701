package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// cutter is a forwarder that sends only the beginning of a batch.
type cutter struct {
	limit int
	inbox inbox

	mu    sync.Mutex
	calls int
}

func (c *cutter) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	c.mu.Lock()
	c.calls++
	c.mu.Unlock()
	unsent := core.EventErrors{}
	if len(batch.Events) > c.limit {
		for i := c.limit; i < len(batch.Events); i++ {
			unsent[i] = core.ErrNotSent
		}
		if batch.Heartbeat != nil {
			unsent[len(batch.Events)] = fmt.Errorf("heartbeat: %w", core.ErrNotSent)
		}
		batch.Events, batch.Heartbeat = batch.Events[:c.limit], nil
	}
	if err := c.inbox.Forward(ctx, manager, batch); err != nil || len(unsent) == 0 {
		return err
	}
	return unsent
}

// Events that stay behind when a batch is cut keep their order and their numbers, and later ones
// follow them.
func TestCutBatchLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cutter{limit: 7}
		o, stop := run(t, c, outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: time.Second})
		for i := range 300 {
			o.Accept(kyma, named(fmt.Sprint("object-", i)))
			time.Sleep(time.Duration(i%3) * ms)
		}
		time.Sleep(time.Minute)
		stop()
		var numbers []uint64
		for _, event := range c.inbox.events() {
			numbers = append(numbers, event.Sequence)
		}
		if len(numbers) != 300 || numbers[299] != 300 || !slices.IsSorted(numbers) {
			t.Errorf("numbers %v, want 1 to 300", numbers)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 300, Delivered: 300})
	})
}

// A heartbeat has a number that the receiver has seen, and comes as soon as the batch is not cut
// any more.
func TestHeartbeatFollowsItsNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cutter{limit: 2}
		o, stop := run(t, c, outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: time.Second, Settle: time.Second})
		for i := range 20 {
			o.Accept(kyma, named(fmt.Sprint("object-", i)))
		}
		time.Sleep(time.Second + 500*ms)
		var seen uint64
		for _, batch := range c.inbox.all() {
			for _, event := range batch.Events {
				seen = event.Sequence
			}
			if beat := batch.Heartbeat; beat != nil && beat.Sequence != seen {
				t.Errorf("heartbeat names %d, but %d was the last to arrive", beat.Sequence, seen)
			}
		}
		if beats := c.inbox.beats(); len(beats) != 2 || beats[1].Sequence != 20 {
			t.Errorf("heartbeats %+v, want one at the start and one after the 20 events", beats)
		}
		stop()
	})
}

// A forwarder that sends nothing at all is not called without a wait.
func TestBatchOfWhichNothingWasSentIsAFailure(t *testing.T) {
	for name, events := range map[string]int{"events": 5, "heartbeat": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
					unsent := core.EventErrors{}
					for i := range len(batch.Events) + 1 {
						unsent[i] = core.ErrNotSent
					}
					return unsent
				})
				o, stop := run(t, p, outbox.Options{
					Epoch: "e", MaxBatch: 500, Managers: []core.Manager{kyma}, HeartbeatInterval: time.Second, DrainTimeout: -1,
				})
				for i := range events {
					o.Accept(kyma, named(fmt.Sprint("object-", i)))
				}
				time.Sleep(10 * time.Minute)
				stop()
				if n := len(p.seen()); n < 40 || n > 80 {
					t.Errorf("%d calls in 10 min, want about one in 10 s", n)
				}
			})
		})
	}
}

// A transport that drops duplicates by their ID must not drop the newer event. A merged event keeps
// its number, so that the receiver sees no gap.
func TestMergedEventHasANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := newPlane(func(_ context.Context, n int, batch core.Batch) error {
			event := batch.Events[0]
			got = append(got, fmt.Sprint(event.Generation, " ", event.Sequence, " ", event.ID))
			if n < 3 {
				return errDown
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{Epoch: "e", HeartbeatInterval: -1, Settle: -1})
		for generation := range int64(3) {
			event := named("a")
			event.Generation = generation
			o.Accept(kyma, event)
			time.Sleep(75 * ms) // Attempts at 0, 100, 300 and 700 ms.
		}
		time.Sleep(time.Minute)
		stop()
		want := []string{"0 1 e-kyma-1", "1 1 e-kyma-1-1", "2 1 e-kyma-1-2", "2 1 e-kyma-1-2"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 3, Coalesced: 2, Delivered: 1})
	})
}

// An event without an answer is sent again with its ID, and a transport may drop it as a
// duplicate. When the time of its resend has passed meanwhile, it is the resend, and must not be
// dropped.
func TestRetryThatIsAResendHasANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		start := time.Now()
		p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
			ids = append(ids, batch.Events[0].ID)
			if time.Since(start) < 5*time.Second {
				return errDown
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{
			Epoch: "e", HeartbeatInterval: -1, Settle: -1, Resend: []time.Duration{3 * time.Second},
		})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		stop()
		if want := []string{"e-kyma-1", "e-kyma-1-1"}; !slices.Equal(slices.Compact(ids), want) {
			t.Errorf("got IDs %q, want %q", ids, want)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 1, Delivered: 1})
	})
}
