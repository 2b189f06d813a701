package replicas_test

import (
	"context"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

var (
	kills   = flag.Int("kills", 1, "how often the leader is killed")
	lease   = flag.Duration("lease", 4*time.Second, "time after which another replica may lead")
	agents  = flag.Int("agents", 4, "runtimes that share the writes")
	compare = flag.Bool("compare", false, "also measure replicas in turn, without a way to the leader")
)

const (
	// mostSlower is the limit of the mean, as a multiple of that of one replica.
	mostSlower = 1.2
	// afterLease is the time after the lease in which every event must be enqueued.
	afterLease = 5 * time.Second
)

// attempts bounds the measurements of one way: the machine of a test may be busy for a moment.
const attempts = 3

// Three replicas take as long as one.
func TestMeanTime(t *testing.T) {
	one := measure(t, "one replica", turns, 1)
	most := time.Duration(mostSlower * float64(one))
	for _, w := range []way{route, relay} {
		mean := measure(t, "three replicas, "+string(w), w, 3)
		for n := 1; n < attempts && mean > most; n++ {
			mean = measure(t, "three replicas again, "+string(w), w, 3)
		}
		if mean > most {
			t.Errorf("three replicas with %s: mean %v, want at most %v times that of one, %v", w, mean, mostSlower, one)
		}
	}
	if *compare {
		measure(t, "three replicas, in turn only", turns, 3)
	}
}

func measure(t *testing.T, name string, w way, count int) (mean time.Duration) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		o := startOperator(t, w, count, *lease)
		r := startRuntimes(o, 2)
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		r.write(ctx, 40)
		delays := r.awaitAll()
		mean = meanOf(delays)
		t.Logf("%d writes until enqueued: mean %v, median %v, p99 %v, longest %v", len(delays), mean.Round(time.Millisecond),
			at(delays, 0.5), at(delays, 0.99), at(delays, 1))
	})
	return mean
}

// awaitAll returns the sorted delays when everything that was written is enqueued.
func (r *runtimes) awaitAll() []time.Duration {
	r.o.t.Helper()
	r.awaitEnqueued(record.Now)
	delays := r.delays()
	slices.Sort(delays)
	return delays
}

// awaitEnqueued waits until each write before a time is enqueued.
func (r *runtimes) awaitEnqueued(before func() time.Duration) {
	r.o.t.Helper()
	lab.Eventually(r.o.t, patience+2**lease, "the writes are enqueued", func() bool {
		return r.missing(before()) == 0
	})
}

func meanOf(delays []time.Duration) (sum time.Duration) {
	for _, d := range delays {
		sum += d
	}
	return sum / time.Duration(max(len(delays), 1))
}

func at(sorted []time.Duration, quantile float64) time.Duration {
	return sorted[int(quantile*float64(len(sorted)-1))].Round(time.Millisecond)
}

// After each kill of the leader, another one has enqueued everything soon after the lease.
func TestKilledLeader(t *testing.T) {
	for _, w := range []way{route, relay} {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			o := startOperator(t, w, 3, *lease)
			r := startRuntimes(o, *agents)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var writing sync.WaitGroup
			writing.Go(func() { r.write(ctx, 200) })
			for range *kills {
				o.killLeader(r)
			}
			stop()
			writing.Wait()
			delays := r.awaitAll()
			t.Logf("%d writes, %d kills, lease %v: median %v, p99 %v, longest %v, 0 lost", len(delays), *kills, *lease,
				at(delays, 0.5), at(delays, 0.99), at(delays, 1))
			if longest := delays[len(delays)-1]; longest > *lease+afterLease {
				t.Errorf("the longest took %v, want at most %v", longest, *lease+afterLease)
			}
		})
	}
}

// killLeader kills the leader and starts it again. It returns when another process leads, and all
// but the last second of writes is enqueued.
func (o *operator) killLeader(r *runtimes) {
	o.t.Helper()
	old := o.leader()
	if old == nil {
		o.t.Fatal("no replica leads")
	}
	holder, killed := o.holder(), record.Now()
	old.Kill()
	old.Launch()
	lab.Eventually(o.t, patience+2**lease, "another process leads", func() bool { return o.holder() != holder })
	elected := record.Now()
	r.awaitEnqueued(func() time.Duration { return elected })
	o.t.Logf("after the kill: another leads %v, all of before is enqueued %v", (elected - killed).Round(time.Millisecond),
		(record.Now() - killed).Round(time.Millisecond))
	r.awaitEnqueued(func() time.Duration { return record.Now() - time.Second })
}
