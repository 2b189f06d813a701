package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// narrowPath is a path that carries so many units: a heartbeat and most events are one unit, an
// event whose name begins with "large" is 1,000.
func narrowPath(units int, refusal error) answer {
	return func(_ context.Context, _ int, batch core.Batch) error {
		time.Sleep(ms)
		if sizeOf(batch) > units {
			return refusal
		}
		return nil
	}
}

func sizeOf(batch core.Batch) (units int) {
	for _, name := range names(batch) {
		units++
		if strings.HasPrefix(name, "large") {
			units += 999
		}
	}
	return units
}

var errTooLarge = fmt.Errorf("the far end: %w", core.ErrTooLarge)

// A batch that is too large is split, and the size that fits is remembered. The heartbeat keeps its
// interval, and names numbers that have arrived.
func TestBatchesThatAreTooLargeAreSplit(t *testing.T) {
	for units, most := range map[int]int{1: 1100, 2: 560, 33: 60, 400: 30} {
		t.Run(strconv.Itoa(units), func(t *testing.T) {
			opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: 200 * ms, GiveUpAfter: time.Hour}
			inBubble(t, scene{opts: opts, answer: narrowPath(units, errTooLarge)}, func(w *world) {
				w.writeMany(1000, "object-", 0)
				time.Sleep(5 * second)
				w.wantCounts(outbox.Counts{Accepted: 1000, Delivered: 1000})
				w.wantBetween(1000/units, w.withEvents(), most, "calls with events")
				w.wantHeartbeats(200*ms+50*ms, 0)

				before := w.withEvents()
				w.writeMany(1000, "other-", 0)
				time.Sleep(5 * second)
				w.wantBetween(1000/units, w.withEvents()-before, 1000*9/8/units+12, "calls with as many events again")
				w.wantHeartbeats(200*ms+50*ms, 0)
			})
		})
	}
}

// The size of one event is not that of the others. It alone is given up, and a resync replaces it.
func TestEventThatIsTooLargeAlone(t *testing.T) {
	opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: 200 * ms}
	inBubble(t, scene{opts: opts, answer: narrowPath(600, errTooLarge)}, func(w *world) {
		w.writeMany(200, "object-", 0)
		w.write("large-1")
		w.writeMany(200, "other-", 0)
		w.write("large-2")
		time.Sleep(10 * second)
		w.wantCounts(outbox.Counts{
			Accepted: 403, Delivered: 401, Dropped: map[core.Reason]int64{"too_large": 2},
		})
		w.wantHeartbeats(200*ms+50*ms, 2)
		w.wantBetween(1, w.count("resync"), 1, "resyncs for two events")
		w.wantBetween(1, w.withEvents(), 60, "calls with events")

		before := w.withEvents()
		w.writeMany(400, "later-", 0)
		time.Sleep(second)
		w.wantBetween(1, w.withEvents()-before, 10, "calls with 400 events: the size doubles from 1, as none is remembered")
	})
}

// A heartbeat that is too large beside an event is sent alone. One that is too large alone waits
// for its interval, and holds up no event.
func TestHeartbeatThatIsTooLarge(t *testing.T) {
	opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: second, GiveUpAfter: time.Hour}
	inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
		time.Sleep(ms)
		if batch.Heartbeat != nil {
			return errTooLarge
		}
		return nil
	}}, func(w *world) {
		w.writeMany(1000, "object-", ms)
		time.Sleep(20 * second)
		w.wantCounts(outbox.Counts{Accepted: 1000, Delivered: 1000})
		w.wantBetween(20, w.count("heartbeat"), 50, "attempts for heartbeats in 21 s")
	})
}

// With the smallest batch, one event and its heartbeat may be too large together. Each then travels
// alone, and nothing is sent again without a wait.
func TestSmallestBatchBesideAHeartbeatIsTooLarge(t *testing.T) {
	for _, most := range []int{1, 2} {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			opts := outbox.Options{Epoch: "e", MaxBatch: most, HeartbeatInterval: 200 * ms, GiveUpAfter: time.Hour}
			inBubble(t, scene{opts: opts, answer: narrowPath(1, errTooLarge)}, func(w *world) {
				w.writeMany(50, "object-", 10*ms)
				time.Sleep(5 * second)
				w.wantCounts(outbox.Counts{Accepted: 50, Delivered: 50})
				w.wantHeartbeats(200*ms+50*ms, 0)
				w.wantBetween(50, w.withEvents(), 60, "calls with events")
			})
		})
	}
}

// A path may drop large requests without a word. After repeated failures the next attempt is small.
func TestPathThatDropsLargeBatches(t *testing.T) {
	for name, refusal := range map[string]error{
		"reset": errDown, "not ready": core.ErrNotReady, "forbidden": core.ErrForbidden,
	} {
		for _, units := range []int{1, 8, 50} {
			t.Run(fmt.Sprint(name, units), func(t *testing.T) {
				opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: 30 * second}
				inBubble(t, scene{opts: opts, answer: narrowPath(units, refusal)}, func(w *world) {
					w.writeMany(400, "object-", 0)
					time.Sleep(20 * time.Minute)
					w.wantCounts(outbox.Counts{Accepted: 400, Delivered: 400})
				})
			})
		}
	}
}

// An outage is not taken for a bound on the size: afterwards, batches are as large as before.
func TestOutageIsNoBoundOnTheSize(t *testing.T) {
	opts := outbox.Options{Epoch: "e", MaxBatch: 500}
	inBubble(t, scene{opts: opts, answer: until(5*time.Minute, errors.New("reset"))}, func(w *world) {
		w.writeMany(400, "object-", 0)
		time.Sleep(6 * time.Minute)
		w.wantCounts(outbox.Counts{Accepted: 400, Delivered: 400})

		before := w.withEvents()
		w.writeMany(400, "other-", 0)
		time.Sleep(second)
		w.wantBetween(1, w.withEvents()-before, 3, "calls with 400 events")
	})
}

// withEvents returns the number of calls with events.
func (p *plane) withEvents() (n int) {
	for _, call := range p.seen() {
		if len(call.Names) > 1 || len(call.Names) == 1 && call.Names[0] != "heartbeat" {
			n++
		}
	}
	return n
}

// wantHeartbeats checks that the heartbeats that arrived name numbers that arrived before or beside
// them, that the numbers do not fall, and that there is one at least every so often. givenUp
// numbers arrived never.
func (w *world) wantHeartbeats(every time.Duration, givenUp uint64) {
	w.t.Helper()
	var seen, named uint64
	var last time.Time
	for _, batch := range w.taken() {
		for _, event := range batch.Events {
			seen = max(seen, event.Sequence)
		}

		beat := batch.Heartbeat
		if beat == nil {
			continue
		}
		if beat.Sequence > seen+givenUp || beat.Sequence < named {
			w.t.Errorf("heartbeat %d names %d after %d, but %d was the last to arrive", beat.Number, beat.Sequence, named, seen)
		}

		if gap := beat.Time.Sub(last); !last.IsZero() && gap > every {
			w.t.Errorf("heartbeat %d comes %v after the last, want at most %v", beat.Number, gap, every)
		}

		named = beat.Sequence
		last = beat.Time
	}

	if last.IsZero() || time.Since(last) > every {
		w.t.Errorf("the last heartbeat is of %v, want one in the last %v", last, every)
	}
}

// After a batch that was too large, a heartbeat may travel alone. If the answer to a later batch is
// lost, the receiver has seen its numbers: a heartbeat that names fewer looks like a restart.
func TestHeartbeatsDoNotFallBehindLostAnswers(t *testing.T) {
	for _, lost := range []error{errDown, core.ErrNotReady, core.ErrForbidden, core.ErrNotSent} {
		t.Run(lost.Error(), func(t *testing.T) {
			var seen uint64
			isLost := func(batch core.Batch) bool {
				return elapsed() > 5*second && elapsed() < 6*second && len(batch.Events) > 0
			}
			opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: 50 * ms, GiveUpAfter: time.Hour}

			inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
				time.Sleep(ms)
				if sizeOf(batch) > 4 {
					return errTooLarge
				}

				for _, event := range batch.Events {
					seen = max(seen, event.Sequence)
				}

				if beat := batch.Heartbeat; beat != nil && beat.Sequence < seen {
					t.Errorf("at %v, a heartbeat names %d, and number %d may have been seen", elapsed(), beat.Sequence, seen)
				}

				if isLost(batch) {
					return lost
				}
				return nil
			}}, func(w *world) {
				w.writeMany(20, "object-", 0)
				time.Sleep(5*second + 10*ms)
				w.writeMany(2, "later-", 0)
				time.Sleep(10 * second)
				w.wantCounts(outbox.Counts{Accepted: 22, Delivered: 22})
			})
		})
	}
}
