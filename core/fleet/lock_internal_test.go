package fleet

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Requests of runtimes wait for the lock. Nothing may hold it long, also when a whole fleet is due
// immediately: sorting 10,000 resyncs under it took 257 ms on two busy cores, and this limit has
// room for the race detector.
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

	if n := len(f.dueResyncs("kyma", time.Now())); n != largeFleet {
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

// A replica that is lost is remembered by what distinguishes it. The rest of its heartbeat, up to
// 6 KiB, is not kept.
func TestALostReplicaTakesLittleMemory(t *testing.T) {
	f, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}

	for _, epoch := range []string{"lost", "lives"} {
		beat := &core.Heartbeat{Number: 7, Interval: time.Hour, Version: "v1", CAFingerprints: []string{"a", "b"}}
		f.Receiver().Observe(core.Peer{ID: "prod"}, "kyma", core.Batch{Epoch: epoch, Heartbeat: beat}, nil)
	}

	r := f.records[key{"prod", "kyma"}]
	r.dismissReplicas(resync{}, func(p *replica) bool { return p.epoch == "lost" })

	for _, p := range r.replicas {
		small := p.heartbeat.CAFingerprints == nil && p.heartbeat.Version == ""
		if small != (p.epoch == "lost") || p.heartbeat.Number != 7 {
			t.Errorf("the replica %q keeps the heartbeat %+v", p.epoch, p.heartbeat)
		}
	}
}

// Only numbers that came here explain a gap. A number in between that did not come is of another
// replica of the operator.
func TestArrivals(t *testing.T) {
	of := func(numbers ...uint64) *core.Batch {
		batch := &core.Batch{}
		for _, n := range numbers {
			batch.Events = append(batch.Events, core.Numbered{Sequence: n})
		}
		return batch
	}

	var a arrivals
	a.noteNumbers(of(9, 6, 7, 6, 4), 4)
	for _, tt := range []struct {
		first, last uint64
		want        bool
	}{
		{5, 5, false},
		{6, 7, true},
		{6, 8, false},
		{6, 9, false},
		{9, 9, true},
		{10, 10, false},
		{10, 9, true}, // None is missing.
	} {
		if have := a.haveAll(tt.first, tt.last); have != tt.want {
			t.Errorf("%d to %d came here: %t, want %t", tt.first, tt.last, have, tt.want)
		}
	}

	a.endAt(6)
	if a.haveAll(6, 6) || !a.haveAll(7, 7) {
		t.Errorf("%d are left up to 6, want those above", a)
	}

	a.endAt(8)
	if len(a) != 1 || a[0] != 9 {
		t.Errorf("%d are left up to 8, want 9", a)
	}

	for n := range uint64(2 * maxArrivals) {
		a.noteNumbers(of(100+n), 9)
	}

	if len(a) != maxArrivals || !a.haveAll(100+maxArrivals, 99+2*maxArrivals) {
		t.Errorf("%d numbers are noted, want the last %d", len(a), maxArrivals)
	}
}
