package paths_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

var someTime = time.Date(2026, 11, 22, 3, 4, 5, 678_901_234, time.UTC)

// load is the shape of a benchmark: each runtime has one call of Forward at a time, with that many
// events.
type load struct{ runtimes, events int }

func (l load) String() string { return fmt.Sprintf("events=%d/runtimes=%d", l.events, l.runtimes) }

// The loads of the goals: batches, and calls with a single event.
var (
	batches  = load{runtimes: 4, events: 300}
	singles  = load{runtimes: 16, events: 1}
	oneByOne = load{runtimes: 1, events: 1}
)

var protocols = []string{"h2", "http/1.1"}

// BenchmarkV3 sends events of contract v3 over native mTLS, with SAN pinning against a cache of
// 10,000 objects. One operation is one call of Forward. Allocations are those of both ends. Rounds
// alternate with those of bare net/http, which carries the same bytes: "bare" is the ratio of the
// processor times.
func BenchmarkV3(b *testing.B) {
	pinned := listener.SANPinning(newRuntimes(b))
	for _, load := range []load{batches, singles, oneByOne} {
		for _, protocol := range protocols {
			b.Run(fmt.Sprintf("%s/%s", load, protocol), func(b *testing.B) {
				calls := newCalls(b, newEnds(b, pinned, protocol, load.runtimes), load)
				twin := newCalls(b, newBareEnds(b, protocol, load), load)
				b.ReportAllocs()
				b.ResetTimer()
				var all, bare usage
				for left := b.N; left > 0; left -= calls.round() {
					n := min(left, calls.round())
					all.measure(func() { calls.run(n) })
					b.StopTimer()
					bare.measure(func() { twin.run(n) })
					b.StartTimer()
				}
				b.StopTimer()
				all.report(b, b.N*load.events)
				b.ReportMetric(all.cpu.Seconds()/bare.cpu.Seconds(), "bare")
			})
		}
	}
}

// BenchmarkPinning compares SAN pinning with no verification, in rounds that alternate, so that both
// have the same share of a noisy machine.
func BenchmarkPinning(b *testing.B) {
	pinned := listener.SANPinning(newRuntimes(b))
	for _, load := range []load{batches, singles} {
		b.Run(load.String(), func(b *testing.B) {
			with := newCalls(b, newEnds(b, pinned, "h2", load.runtimes), load)
			without := newCalls(b, newEnds(b, listener.InsecureAllowAll(), "h2", load.runtimes), load)
			var pinning, free usage
			b.ResetTimer()
			for left := b.N; left > 0; {
				n := min(left, with.round())
				pinning.measure(func() { with.run(n) })
				free.measure(func() { without.run(n) })
				left -= n
			}
			b.ReportMetric(100*(pinning.cpu.Seconds()/free.cpu.Seconds()-1), "pinning-%")
		})
	}
}

// calls are the calls of Forward of several runtimes.
type calls struct {
	b     *testing.B
	ends  *ends
	load  load
	batch core.Batch
}

// newCalls also connects all runtimes.
func newCalls(b *testing.B, e *ends, l load) *calls {
	b.Helper()
	c := &calls{b: b, ends: e, load: l, batch: newBatch(l.events)}
	c.run(l.runtimes)
	return c
}

// round is a number of calls that takes some tens of milliseconds.
func (c *calls) round() int { return max(500/c.load.events, 4*c.load.runtimes) }

// run makes n calls, and checks that the operator got all events.
func (c *calls) run(n int) {
	c.b.Helper()
	before := c.ends.handled.Load()
	var (
		left atomic.Int64
		all  sync.WaitGroup
	)
	left.Store(int64(n))
	for _, forwarder := range c.ends.runtimes {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := forwarder.Forward(c.b.Context(), manager, c.batch); err != nil {
					c.b.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got, want := c.ends.handled.Load()-before, int64(n*c.load.events); got != want {
		c.b.Errorf("the operator got %d events, want %d", got, want)
	}
}

// usage is the time that some work took, and the processor time of the whole process.
type usage struct{ wall, cpu time.Duration }

// measure adds the usage of some work.
func (u *usage) measure(work func()) {
	started, before := time.Now(), processorTime()
	work()
	u.wall += time.Since(started)
	u.cpu += processorTime() - before
}

// report adds the events per second, and the processor time of both ends for each event.
func (u *usage) report(b *testing.B, events int) {
	b.Helper()
	b.ReportMetric(float64(events)/u.wall.Seconds(), "events/s")
	b.ReportMetric(float64(u.cpu.Microseconds())/float64(events), "cpu-µs/event")
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
