package outbox_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// checking returns options with a receiver that says after what time it checks, 0 for never.
func checking(after *atomic.Int64) outbox.Options {
	return outbox.Options{
		Epoch: "e", HeartbeatInterval: -1, MaxBatch: 500,
		RecheckAfter: func(manager core.Manager) time.Duration {
			if manager != kyma {
				return 0
			}
			return time.Duration(after.Load())
		},
	}
}

func written(name string) core.WatchEvent {
	event := named(name)
	event.UID = types.UID("uid of " + name)
	return event
}

// TestAReceiverThatChecksGetsEventsEarly sends one event after the other.
func TestAReceiverThatChecksGetsEventsEarly(t *testing.T) {
	t.Parallel()

	var after atomic.Int64
	var down atomic.Bool
	inBubble(t, scene{opts: checking(&after), answer: func(context.Context, int, core.Batch) error {
		if down.Load() {
			return errDown
		}
		return nil
	}}, func(w *world) {
		wait := func(event core.WatchEvent, want time.Duration, why string) {
			t.Helper()

			n := len(w.seen())
			began := elapsed()
			w.Accept(kyma, event)
			time.Sleep(150 * ms)
			if calls := w.seen(); len(calls) == n || calls[n].At-began != want {
				t.Errorf("%s: calls %v, want the first %v after %v", why, calls[n:], want, began)
			}
		}

		after.Store(int64(100 * ms))
		wait(written("a"), 100*ms, "the manager never answered")
		wait(written("b"), 10*ms, "its last answer says that it checks")
		wait(named("c"), 100*ms, "the event has no UID")
		wait(core.WatchEvent{Resync: true, UID: "u"}, 100*ms, "a resync")

		after.Store(int64(99 * ms))
		wait(written("d"), 10*ms, "the last answer counts")
		time.Sleep(second)
		wait(written("e"), 100*ms, "it checks too early")

		after.Store(int64(100 * ms))
		wait(written("f"), 100*ms, "the answer before said no")
		down.Store(true)
		after.Store(0)
		wait(written("g"), 10*ms, "before the failure")
		down.Store(false)
		time.Sleep(5 * second)
		wait(written("h"), 100*ms, "after a failure")
	})
}

// TestAnEarlyEventToAnotherReplicaIsSentAgain sends to a replica that does not check, as after a
// rollback. Its reconcile may be too early.
func TestAnEarlyEventToAnotherReplicaIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		checks time.Duration // of the second replica
		want   []call
	}{
		"it checks":         {100 * ms, []call{at(100*ms, "a"), at(1010*ms, "b"), at(3*second, "a"), at(4*second, "b")}},
		"it does not check": {0, []call{at(100*ms, "a"), at(1010*ms, "b"), at(1100*ms, "b"), at(3*second, "a"), at(4*second, "b")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var after atomic.Int64
			after.Store(int64(100 * ms))
			opts := checking(&after)
			opts.Resend = []time.Duration{3 * second}
			inBubble(t, scene{opts: opts}, func(w *world) {
				w.Accept(kyma, written("a"))
				time.Sleep(second)
				after.Store(int64(tt.checks))
				w.Accept(kyma, written("b"))
				time.Sleep(time.Minute)
				w.wantCalls(tt.want...)
			})
		})
	}
}

// TestAnEarlyEventWithoutAnswerGetsAnotherID loses the answers of a replica that does not check.
// The reconcile of the early attempt may be too early, so a receiver that drops duplicates must
// take the attempt after the settle time.
func TestAnEarlyEventWithoutAnswerGetsAnotherID(t *testing.T) {
	t.Parallel()

	var after atomic.Int64
	var down atomic.Bool
	opts := checking(&after)
	opts.MinBackoff = 60 * ms
	var ids []string // One call follows the other.

	inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
		for _, event := range batch.Events {
			ids = append(ids, event.ID)
		}

		if down.Load() {
			return errDown
		}
		return nil
	}}, func(w *world) {
		after.Store(int64(100 * ms))
		w.Accept(kyma, written("a"))
		time.Sleep(second)

		after.Store(0)
		down.Store(true)
		w.Accept(kyma, written("b"))
		time.Sleep(90 * ms)
		down.Store(false)
		time.Sleep(second)

		w.stop()
		want := []string{"e-kyma-1", "e-kyma-2", "e-kyma-2", "e-kyma-2-1"} // The last one after 100 ms.
		if !slices.Equal(ids, want) {
			t.Errorf("IDs %q, want %q", ids, want)
		}
	})
}

// TestEventsOfTwoObjectsOfANameSettle accepts the events of an object and of its successor. Merged,
// they name no object, so no receiver can check them.
func TestEventsOfTwoObjectsOfANameSettle(t *testing.T) {
	t.Parallel()

	var after atomic.Int64
	after.Store(int64(100 * ms))
	inBubble(t, scene{opts: checking(&after)}, func(w *world) {
		w.Accept(kyma, written("a"))
		time.Sleep(second)
		successor := written("b")
		w.Accept(kyma, successor)
		successor.UID = "another one"
		w.Accept(kyma, successor)
		time.Sleep(second)
		w.wantCalls(at(100*ms, "a"), at(1010*ms, "b"), at(1100*ms, "b"))
	})
}

// TestRoomIsMadeOfEventsThatSettle sets no resends, so that only events that were sent too early
// wait in the queue of the resends.
func TestRoomIsMadeOfEventsThatSettle(t *testing.T) {
	t.Parallel()

	var after atomic.Int64
	opts := checking(&after)
	opts.Resend = []time.Duration{}
	opts.MaxKeys = 1
	inBubble(t, scene{opts: opts}, func(w *world) {
		after.Store(int64(100 * ms))
		w.Accept(kyma, written("a"))
		time.Sleep(200 * ms)

		after.Store(0)
		w.Accept(kyma, written("b"))
		time.Sleep(20 * ms) // The event was sent early, and is sent again after 100 ms.
		w.wantOutcome(kyma, written("c"), core.Accepted)

		time.Sleep(second)
		w.wantBetween(1, w.count("resync"), 1, "resyncs")
	})
}
