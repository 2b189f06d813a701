package fleet

import (
	"strconv"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Requests of runtimes wait for the lock. Nothing may hold it long, also when a whole fleet is due
// at once: sorting 10,000 resyncs under it took 257 ms on two busy cores, and this limit has room
// for the race detector.
func TestNothingHoldsTheLockLong(t *testing.T) {
	const limit = 60 * time.Millisecond
	f := newLargeFleet(t)
	if n := len(f.due("kyma", time.Now())); n != largeFleet {
		t.Errorf("%d resyncs are due, want %d", n, largeFleet)
	}
	if took := fastest(func() { f.collectDue("kyma", time.Now()) }); took > limit {
		t.Errorf("collecting the due resyncs holds the lock for %v, want at most %v", took, limit)
	}
	keys := f.keys()
	if took := fastest(func() { f.reviewSome(keys[:slice]) }); took > limit {
		t.Errorf("reviewing a slice holds the lock for %v, want at most %v", took, limit)
	}
}

const largeFleet = 10_000

func newLargeFleet(tb testing.TB) *Fleet {
	tb.Helper()
	f, err := New(Options{ResyncJitter: time.Nanosecond})
	if err != nil {
		tb.Fatal(err)
	}
	for n := range largeFleet {
		batch := core.Batch{Epoch: "e", Events: []core.Numbered{{Sequence: 1}}}
		f.Observe(core.Peer{ID: core.RuntimeID(strconv.Itoa(n))}, "kyma", batch, nil)
	}
	return f
}

// fastest is robust against other processes on the machine.
func fastest(work func()) time.Duration {
	best := time.Hour
	for range 5 {
		started := time.Now()
		work()
		best = min(best, time.Since(started))
	}
	return best
}

// BenchmarkLock measures the longest times for which 10,000 runtimes hold the lock of a fleet.
func BenchmarkLock(b *testing.B) {
	f := newLargeFleet(b)
	keys := f.keys()
	b.Run("due resyncs", func(b *testing.B) {
		for b.Loop() {
			f.collectDue("kyma", time.Now())
		}
	})
	b.Run("review of a slice", func(b *testing.B) {
		for b.Loop() {
			f.reviewSome(keys[:slice])
		}
	})
}
