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

// When a control plane comes back, the runtimes that waited for it do not come back all at once:
// the waits are random for that.
func TestRuntimesComeBackOneByOne(t *testing.T) {
	const runtimes = 50
	for _, outage := range []time.Duration{10 * time.Second, time.Minute, time.Hour} {
		for _, random := range []bool{true, false} {
			t.Run(fmt.Sprint(outage, " random ", random), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					arrivals := comeBack(t, runtimes, outage, random)
					busiest, last := busiestSecond(arrivals), arrivals[len(arrivals)-1]
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
