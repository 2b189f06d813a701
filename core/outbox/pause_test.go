package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Calls in flight that fail together are one failure: the manager is tried again soon after a short
// outage.
func TestConcurrentFailuresCountOnce(t *testing.T) {
	const outage = 500 * ms
	for name, value := range map[string]float64{"shortest waits": 0, "longest waits": 0.999} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, scene{
				opts: outbox.Options{Random: random(value), Settle: -1},
				answer: func(_ context.Context, n int, _ core.Batch) error {
					if elapsed() > outage {
						return nil
					}
					time.Sleep(time.Duration(n%8) * ms) // They do not fail at the same moment.
					return errDown
				},
			}, func(w *world) {
				w.writeMany(100, "", 0)
				time.Sleep(outage + second)
				w.wantDelivered(100)
			})
		})
	}
}

// A call that hangs since before the failure does not delay the next attempt.
func TestHangingCallsDoNotDelayTheNextAttempt(t *testing.T) {
	inBubble(t, scene{
		opts: outbox.Options{Settle: -1},
		answer: func(ctx context.Context, n int, batch core.Batch) error {
			switch {
			case n == 7:
				return errDown
			case n < 8:
				return hang(ctx, n, batch)
			default:
				return nil
			}
		},
	}, func(w *world) {
		w.writeMany(20, "", 0)
		time.Sleep(second)
		w.wantCounts(outbox.Counts{Accepted: 20, Delivered: 13, Pending: 7}) // Those that hang.
		time.Sleep(time.Minute)
		w.wantDelivered(20)
	})
}

func TestOneAttemptAtATimeAfterAFailure(t *testing.T) {
	var calls gauge
	inBubble(t, scene{
		opts: outbox.Options{Settle: -1, DrainTimeout: -1},
		answer: func(_ context.Context, n int, _ core.Batch) error {
			if n >= 8 {
				calls.hold()
			}
			return errDown
		},
	}, func(w *world) {
		w.writeMany(20, "", 0)
		time.Sleep(time.Minute)
		w.stop()
		w.wantBetween(1, calls.most, 1, "attempts at once while the manager is away")
	})
}

// The waits of an outage do not depend on the one before it. A receiver that is not ready for a
// moment is tried again within about 2 s, also after an hour in which it was not.
func TestALongOutageDoesNotSlowDownTheNextOne(t *testing.T) {
	var down atomic.Bool
	inBubble(t, scene{
		opts: outbox.Options{Random: random(0.999)},
		answer: func(context.Context, int, core.Batch) error {
			if down.Load() {
				return core.ErrNotReady
			}
			return nil
		},
	}, func(w *world) {
		for name, outage := range []time.Duration{time.Hour, 15 * second} {
			down.Store(true)
			w.write(numbered("", name))
			time.Sleep(outage)
			down.Store(false)
			if outage == time.Hour {
				time.Sleep(time.Minute)
			}
		}

		time.Sleep(2 * second)
		w.wantDelivered(2)
	})
}

// After a long refusal, the first call with the new certificate reaches a replica that does not
// lead. The long refusal says nothing about the next call.
func TestRetryBeginsTheWaitsAgain(t *testing.T) {
	var renewed atomic.Bool
	inBubble(t, scene{
		opts: outbox.Options{Settle: -1},
		answer: func(context.Context, int, core.Batch) error {
			if !renewed.Swap(false) {
				return unwelcome
			}
			return core.ErrNotReady
		},
	}, func(w *world) {
		w.write("a")
		time.Sleep(10 * time.Minute)
		calls := len(w.seen())
		renewed.Store(true)
		w.Retry()
		time.Sleep(second)
		w.wantBetween(2, len(w.seen())-calls, 10, "calls within a second of Retry, another after that which was not ready")
	})
}

// Events that were refused for different times come in the order in which they were accepted.
func TestRetryKeepsTheOrder(t *testing.T) {
	const events = 20
	inBubble(t, scene{
		opts: outbox.Options{InFlight: 1},
		answer: func(_ context.Context, n int, _ core.Batch) error {
			if n < events {
				return core.EventErrors{0: verdict{after: time.Duration(events-n) * time.Minute}}
			}
			return nil
		},
	}, func(w *world) {
		w.writeMany(events, "", 0)
		time.Sleep(second)
		w.Retry()
		time.Sleep(second)
		var got, want []string
		for i, event := range w.events() {
			got = append(got, event.Watched.Name)
			want = append(want, numbered("", i))
		}

		if len(got) != events || !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// recoveryGoal is the longest time until each change has arrived after an outage.
const recoveryGoal = time.Minute

// control is a control plane for many runtimes that is down until a test sets it up.
type control struct {
	up      atomic.Bool
	mu      sync.Mutex
	arrived map[string]time.Time // when the first event of a sender arrived
}

func (c *control) forward(sender string) func(*plane) core.Forwarder {
	forward := func(context.Context, core.Manager, core.Batch) error {
		if !c.up.Load() {
			return errDown
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, known := c.arrived[sender]; !known {
			c.arrived[sender] = time.Now()
		}
		return nil
	}
	return func(*plane) core.Forwarder { return core.ForwarderFunc(forward) }
}

// When a control plane comes back, the runtimes that waited for it do not all come back in the same
// moment: the waits are random for that.
func TestRuntimesComeBackOneByOne(t *testing.T) {
	const runtimes = 50
	for _, outage := range []time.Duration{10 * time.Second, time.Minute, time.Hour} {
		for _, random := range []bool{true, false} {
			t.Run(fmt.Sprint(outage, " random ", random), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					arrivals := comeBack(t, runtimes, outage, random)
					busiest := busiestSecond(arrivals)
					last := arrivals[len(arrivals)-1]
					t.Logf("%d runtimes came back within %v, at most %d of them within any second", len(arrivals), last, busiest)
					if len(arrivals) != runtimes || last > recoveryGoal {
						t.Errorf("%d of %d runtimes came back, the last after %v, want all in %v",
							len(arrivals), runtimes, last, recoveryGoal)
					}

					if limit := runtimes / 3; random && busiest > limit {
						t.Errorf("%d of %d runtimes came back within one second, want at most %d", busiest, runtimes, limit)
					}
					if !random && busiest < runtimes {
						t.Errorf("%d runtimes came back within one second without randomness: this test could not fail", busiest)
					}
				})
			})
		}
	}
}

// comeBack returns when the first event of each runtime arrived after an outage, in order.
func comeBack(t *testing.T, runtimes int, outage time.Duration, random bool) (arrivals []time.Duration) {
	t.Helper()

	plane := &control{arrived: make(map[string]time.Time)}
	for i := range runtimes {
		opts := outbox.Options{Random: jitter(uint64(i))}
		if !random {
			opts.Random = func() float64 { return 0.5 }
		}
		w := newWorld(t, scene{opts: opts, via: plane.forward(numbered("runtime-", i))})
		w.start()
		w.write("object")
	}

	time.Sleep(outage)
	plane.up.Store(true)
	ended := time.Now()
	time.Sleep(recoveryGoal)
	plane.mu.Lock()
	defer plane.mu.Unlock()

	for _, at := range plane.arrived {
		arrivals = append(arrivals, at.Sub(ended))
	}

	slices.Sort(arrivals)
	return arrivals
}

// busiestSecond returns the number of arrivals within the busiest second.
func busiestSecond(arrivals []time.Duration) (most int) {
	for i, first := range arrivals {
		end, _ := slices.BinarySearch(arrivals, first+time.Second)
		most = max(most, end-i)
	}
	return most
}
