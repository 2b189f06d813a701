package lab

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Arrival is a change of one object that was delivered to an operator.
type Arrival struct {
	Runtime core.RuntimeID
	Manager core.Manager
	Object  string
}

// Arrivals has the deliveries to an operator. Its zero value has none.
type Arrivals struct {
	mu      sync.Mutex
	counts  map[Arrival]int
	resyncs map[Arrival]time.Time // the last ones, without object
}

// Delivered notes a delivery that was enqueued. It fits the hook of a source.
func (a *Arrivals) Delivered(d core.Delivery, requests int, err error) {
	if err == nil && requests == 1 {
		a.Note(Arrival{d.Runtime, d.Manager, d.Event.Watched.Name}, d.Event.Resync)
	}
}

// Note notes an arrival. A resync is one of all objects.
func (a *Arrivals) Note(arrival Arrival, resync bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts, a.resyncs = map[Arrival]int{}, map[Arrival]time.Time{}
	}
	if resync {
		arrival.Object = ""
		a.resyncs[arrival] = time.Now()
		return
	}
	a.counts[arrival]++
}

// Count returns how often an object arrived.
func (a *Arrivals) Count(arrival Arrival) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[arrival]
}

// Of returns the arrivals of an object, from any runtime and for any manager.
func (a *Arrivals) Of(object string) (all []Arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for arrival := range a.counts {
		if arrival.Object == object {
			all = append(all, arrival)
		}
	}
	return all
}

func (a *Arrivals) lastResync(of Arrival) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	of.Object = ""
	return a.resyncs[of]
}

// Flow is a stream of writes in one runtime, each of another object. It is the oracle of what may
// not be lost: each write arrives after its commit, or a resync after its commit does.
type Flow struct {
	t        testing.TB
	arrivals *Arrivals
	of       Arrival // without object
	stop     func()

	mu      sync.Mutex
	commits []time.Time
	slowest time.Duration
	failed  []error
}

// StartFlow writes with create in that interval. The arrivals are those for one manager.
func StartFlow(
	t testing.TB, arrivals *Arrivals, runtime core.RuntimeID, manager core.Manager, every time.Duration,
	create func(ctx context.Context, object string) error,
) *Flow {
	t.Helper()
	f := &Flow{t: t, arrivals: arrivals, of: Arrival{Runtime: runtime, Manager: manager}}
	f.stop = Run(t, "writes in "+string(runtime), func(ctx context.Context) error {
		for tick := time.NewTicker(every); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return nil
			case <-tick.C:
				f.write(context.WithoutCancel(ctx), create)
			}
		}
	})
	return f
}

func (f *Flow) write(ctx context.Context, create func(ctx context.Context, object string) error) {
	begun := time.Now()
	err := create(ctx, flowObject(f.Count()))
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed = append(f.failed, err)
	}
	f.commits = append(f.commits, time.Now())
	f.slowest = max(f.slowest, time.Since(begun))
}

func flowObject(n int) string { return fmt.Sprintf("traffic-%d", n) }

// Count returns the number of writes so far.
func (f *Flow) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.commits)
}

// lost returns the number of writes without arrival, and of those that a resync stands in for. Only
// writes before strict may have one.
func (f *Flow) lost(strict int) (lost, resyncs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, committed := range f.commits {
		arrival := f.of
		arrival.Object = flowObject(n)
		switch {
		case f.arrivals.Count(arrival) > 0:
		case n < strict && f.arrivals.lastResync(f.of).After(committed):
			resyncs++
		default:
			lost++
		}
	}
	return lost, resyncs
}

// Settle stops the writes and waits until each has arrived. A resync may stand in for writes
// before strict. No write may have failed.
func (f *Flow) Settle(within time.Duration, strict int) {
	f.t.Helper()
	f.stop()
	lost, resyncs := 0, 0
	Eventually(f.t, within, "every change of "+string(f.of.Runtime)+" arrives", func() bool {
		lost, resyncs = f.lost(strict)
		return lost == 0
	})
	if len(f.failed) > 0 {
		f.t.Errorf("%s: %d of %d writes failed, the first with %v", f.of.Runtime, len(f.failed), len(f.commits), f.failed[0])
	}
	f.t.Logf("%s: %d writes, %d of which a resync stands in for; the slowest took %v",
		f.of.Runtime, len(f.commits), resyncs, f.slowest.Round(time.Millisecond))
}
