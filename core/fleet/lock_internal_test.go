package fleet

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Requests of runtimes wait for the lock. Nothing may hold it long, also when a whole fleet is due
// at once: sorting 10,000 resyncs under it took 257 ms on two busy cores, and this limit has room
// for the race detector.
func TestNothingHoldsTheLockLong(t *testing.T) {
	const limit, largeFleet = 60 * time.Millisecond, 10_000
	f, err := New(Options{Random: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	for n := range largeFleet {
		batch := core.Batch{Epoch: "e", Events: []core.Numbered{{Sequence: 1}}}
		f.Receiver().Observe(core.Peer{ID: core.RuntimeID(strconv.Itoa(n))}, "kyma", batch, nil)
	}
	if n := len(f.due("kyma", time.Now())); n != largeFleet {
		t.Errorf("%d resyncs are due, want %d", n, largeFleet)
	}
	if took := processorTime(t, func() { f.collectDue("kyma", time.Now()) }); took > limit {
		t.Errorf("collecting the due resyncs holds the lock for %v, want at most %v", took, limit)
	}
	keys := f.keys()
	if took := processorTime(t, func() { f.reviewSome(keys[:slice]) }); took > limit {
		t.Errorf("reviewing a slice holds the lock for %v, want at most %v", took, limit)
	}
}

// processorTime returns the mean of five rounds. Unlike a duration, it does not grow with the load
// of the machine.
func processorTime(t *testing.T, work func()) time.Duration {
	t.Helper()
	const rounds = 5
	used := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	before := used()
	for range rounds {
		work()
	}
	return (used() - before) / rounds
}
