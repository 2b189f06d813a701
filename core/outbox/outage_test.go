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

// fault is how a control plane that is down answers.
type fault struct {
	name   string
	answer answer
}

func outageFaults() []fault {
	return []fault{
		{"refused", always(errDown)},
		{"hanging", hang},
		{"busy", always(verdict{reason: "busy", after: 5 * second})},
		{"forbidden", always(verdict{reason: "forbidden", after: 30 * second})},
	}
}

// control is a control plane for many runtimes that is down until a test sets it up.
type control struct {
	fault fault

	up      atomic.Bool
	mu      sync.Mutex
	arrived map[string]time.Time // when the first event of a sender arrived, and when each of its events did
}

func (c *control) forward(sender string) func(*plane) core.Forwarder {
	forward := func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		if !c.up.Load() {
			return c.fault.answer(ctx, 0, batch)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range append([]string{sender}, arrivedKeys(manager, batch)...) {
			if _, known := c.arrived[key]; !known {
				c.arrived[key] = time.Now()
			}
		}
		return nil
	}
	return func(*plane) core.Forwarder { return core.ForwarderFunc(forward) }
}

func arrivedKeys(manager core.Manager, batch core.Batch) (all []string) {
	for _, event := range batch.Events {
		if !event.Resync {
			all = append(all, string(manager)+"/"+event.Watched.Name)
		}
	}
	return all
}

// After an hour without control plane, in which 200 objects go on changing for each of several
// managers, every one of them is enqueued in time, with the default waits.
func TestEverythingArrivesAfterAnOutage(t *testing.T) {
	for _, fault := range outageFaults() {
		for _, epoch := range []string{"", "epoch"} {
			t.Run(fault.name+" "+epoch, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testOutage(t, fault, epoch) })
			})
		}
	}
}

func testOutage(t *testing.T, fault fault, epoch string) {
	t.Helper()
	const managers, objects = 5, 200
	plane := &control{fault: fault, arrived: make(map[string]time.Time)}
	opts := outbox.Options{Epoch: epoch}
	if epoch != "" {
		opts.MaxBatch = 500
	}
	w := newWorld(t, scene{opts: opts, via: plane.forward("runtime")})
	w.start()
	for i := range 3600 {
		w.Accept(core.Manager(numbered("manager-", i%managers)), named(numbered("object-", i/managers%objects)))
		time.Sleep(time.Second)
	}
	checkBalance(t, w.Outbox)
	plane.up.Store(true)
	ended := time.Now()
	time.Sleep(recoveryGoal)
	checkBalance(t, w.Outbox)
	plane.mu.Lock()
	defer plane.mu.Unlock()
	var last time.Duration
	for _, at := range plane.arrived {
		last = max(last, at.Sub(ended))
	}
	t.Logf("everything was enqueued %v after an hour of %s", last, fault.name)
	if have := len(plane.arrived) - 1; have != managers*objects {
		t.Errorf("%d events arrived within %v, want all %d", have, recoveryGoal, managers*objects)
	}
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
	plane := &control{fault: outageFaults()[0], arrived: make(map[string]time.Time)}
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
	delete(plane.arrived, string(kyma)+"/object")
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
