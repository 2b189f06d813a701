package remote_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

// fleet is an operator with requests "cluster/object", in virtual time.
type fleet struct {
	t     *testing.T
	lanes *remote.Lanes[string]

	mu      sync.Mutex
	takes   map[string]time.Duration // by the name of the cluster
	sent    map[string]time.Time
	waits   map[string][]time.Duration // until the first begin of each request, by cluster
	running map[string]int
	most    map[string]int // at the same time
	ends    map[string]int // by request
}

func clusterOf(r string) string {
	cluster, _, _ := strings.Cut(r, "/")
	return cluster
}

// startFleet runs both controllers until the returned function is called.
func startFleet(t *testing.T, workers int, opts remote.LanesOptions[string]) (f *fleet, stop func()) {
	t.Helper()

	f = &fleet{
		t: t, takes: map[string]time.Duration{}, sent: map[string]time.Time{}, waits: map[string][]time.Duration{},
		running: map[string]int{}, most: map[string]int{}, ends: map[string]int{},
	}
	f.lanes = remote.NewLanes(clusterOf, reconcile.TypedFunc[string](f.reconcile), opts)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for lane, n := range map[*remote.Lane[string]]int{f.lanes.Regular: workers, f.lanes.Slow: workers} {
		c := must(controller.NewTypedUnmanaged(lane.String(), controller.TypedOptions[string]{
			Reconciler: lane, MaxConcurrentReconciles: n, UsePriorityQueue: new(true), SkipNameValidation: new(true),
		}))
		if err := c.Watch(lane); err != nil {
			t.Fatal(err)
		}

		running.Go(func() { _ = c.Start(ctx) })
	}

	synctest.Wait()
	return f, func() {
		// Before controller-runtime 0.25, a queue that has requests when it is shut down may wait
		// for ever for a worker that has left. All requests end first, also one that takes an hour.
		f.mu.Lock()
		clear(f.takes)
		f.mu.Unlock()
		pass(2 * time.Hour)
		cancel()
		running.Wait()
	}
}

func (f *fleet) reconcile(ctx context.Context, r string) (reconcile.Result, error) {
	cluster := clusterOf(r)
	f.mu.Lock()
	if at, waits := f.sent[r]; waits {
		f.waits[cluster] = append(f.waits[cluster], time.Since(at))
		delete(f.sent, r)
	}

	f.running[cluster]++
	f.most[cluster] = max(f.most[cluster], f.running[cluster])
	takes := f.takes[cluster]
	f.mu.Unlock()

	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running[cluster]--
	}()
	select {
	case <-time.After(takes):
		f.mu.Lock()
		f.ends[r]++
		f.mu.Unlock()
		return reconcile.Result{}, nil
	case <-ctx.Done():
		return reconcile.Result{}, context.Cause(ctx)
	}
}

func (f *fleet) send(r string) {
	f.mu.Lock()
	f.sent[r] = time.Now()
	f.mu.Unlock()
	f.lanes.Regular.Add(0, 0, r)
}

// want checks that all requests of a cluster began, each within a time.
func (f *fleet) want(cluster string, n int, within time.Duration) {
	f.t.Helper()

	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waits[cluster]) != n {
		f.t.Errorf("%d of %d requests of %s began", len(f.waits[cluster]), n, cluster)
	}

	for _, wait := range f.waits[cluster] {
		if wait > within {
			f.t.Errorf("a request of %s waited %v, want at most %v", cluster, wait, within)
			return
		}
	}
}

// Clusters of which each request takes 14 s, with 15 changes a second, beside two honest ones.
func TestSlowClustersTakeNoWorkerFromTheOthers(t *testing.T) {
	for name, test := range map[string]struct {
		workers, hostile int
		takes            time.Duration
		within           time.Duration
	}{
		"control: fast":                 {10, 1, 0, 100 * time.Millisecond},
		"one of them, ten workers":      {10, 1, 14 * time.Second, 100 * time.Millisecond},
		"one of them, one worker":       {1, 1, 14 * time.Second, 4 * time.Second},
		"twenty, ten workers":           {10, 20, 14 * time.Second, 7 * time.Second},
		"one that is just fast enough":  {1, 1, 2900 * time.Millisecond, 6 * time.Second},
		"one that never ends, a worker": {1, 1, time.Hour, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			useOneProcessor(t)
			synctest.Test(t, func(t *testing.T) {
				f, stop := startFleet(t, test.workers, remote.LanesOptions[string]{})
				defer stop()
				for n := range test.hostile {
					f.takes[fmt.Sprint("hostile-", n)] = test.takes
				}

				const seconds, rate = 59, 15
				for n := range seconds * rate {
					pass(time.Second / rate)
					for h := range test.hostile {
						f.send(fmt.Sprintf("hostile-%d/%d", h, n))
					}

					if n%rate == 0 {
						f.send(fmt.Sprint("honest/", n))
						f.send(fmt.Sprint("other/", n))
					}
				}

				pass(10 * time.Second)
				f.want("honest", seconds, test.within)
				f.want("other", seconds, test.within)
				if f.most["hostile-0"] > 2 {
					t.Errorf("%d reconciles of a hostile cluster at the same time, want 2", f.most["hostile-0"])
				}
			})
		})
	}
}

// After a slow time, a cluster reconciles all that it was sent, and goes back.
func TestAClusterComesBackFromTheSlowLane(t *testing.T) {
	useOneProcessor(t)
	synctest.Test(t, func(t *testing.T) {
		f, stop := startFleet(t, 2, remote.LanesOptions[string]{Share: 1})
		defer stop()
		f.takes["a"] = 14 * time.Second
		const many = 50
		for n := range many {
			f.send(fmt.Sprint("a/", n))
		}

		pass(time.Minute)
		f.mu.Lock()
		f.takes["a"] = 0
		f.mu.Unlock()
		pass(time.Minute)
		for n := range many {
			if f.ends[fmt.Sprint("a/", n)] != 1 {
				t.Errorf("request %d was reconciled %d times", n, f.ends[fmt.Sprint("a/", n)])
			}
		}

		// It has the regular lane, while others fill the slow one.
		f.takes["b"], f.takes["c"] = time.Hour, time.Hour
		f.send("b/1")
		f.send("c/1")
		pass(10 * time.Second)
		f.waits["a"] = nil
		f.send("a/last")
		pass(time.Second)
		f.want("a", 1, 100*time.Millisecond)
	})
}

// Names beyond those that may wait are replaced by one request for the cluster.
func TestNamesThatWaitAreBounded(t *testing.T) {
	useOneProcessor(t)
	synctest.Test(t, func(t *testing.T) {
		dropped := 0
		f, stop := startFleet(t, 2, remote.LanesOptions[string]{
			Share: 1, Waiting: 2,
			Replace: func(r string) string {
				dropped++
				return clusterOf(r) + "/all"
			},
		})
		defer stop()
		f.takes["a"] = time.Second
		for n := range 10 {
			f.send(fmt.Sprint("a/", n))
			synctest.Wait()
		}

		f.send("b/1")
		pass(time.Minute)
		// One runs, two wait, and seven are replaced by one.
		if dropped != 7 || f.ends["a/all"] != 1 || len(f.ends) != 5 {
			t.Errorf("%d dropped, reconciled %v", dropped, f.ends)
		}

		f.want("b", 1, 0)
	})
}

// A change arrives while the other lane reconciles the object: it is reconciled once more.
func TestAChangeDuringAReconcileOfTheOtherLaneIsNotLost(t *testing.T) {
	useOneProcessor(t)
	synctest.Test(t, func(t *testing.T) {
		f, stop := startFleet(t, 2, remote.LanesOptions[string]{})
		defer stop()
		f.takes["a"] = 10 * time.Second
		f.send("a/x")
		pass(5 * time.Second) // In the slow lane now.
		f.send("a/x")
		pass(time.Minute)
		if f.ends["a/x"] != 2 || f.most["a"] != 1 {
			t.Errorf("%d reconciles, %d at the same time, want 2 and 1", f.ends["a/x"], f.most["a"])
		}
	})
}

// A lane that is no source of its controller reconciles without shares.
func TestALaneWithoutItsSourceReconciles(t *testing.T) {
	calls := 0
	lanes := remote.NewLanes(clusterOf, reconcile.TypedFunc[string](func(context.Context, string) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, nil
	}), remote.LanesOptions[string]{Share: 1})
	for range 3 {
		if _, err := lanes.Regular.Reconcile(t.Context(), "a/x"); err != nil {
			t.Error(err)
		}
	}

	if calls != 3 || lanes.Slow.Add(0, 0, "a/x") {
		t.Errorf("%d calls, want 3, and a slow lane that does not run", calls)
	}
}

// A judge that finds a failure leaves the retry to the slow lane.
func TestAJudgeDecides(t *testing.T) {
	useOneProcessor(t)
	synctest.Test(t, func(t *testing.T) {
		calls := make(map[string]int)
		errFailed := errors.New("failed")
		var mu sync.Mutex
		lanes := remote.NewLanes(clusterOf, reconcile.TypedFunc[string](func(_ context.Context, r string) (reconcile.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			calls[r]++
			if calls[r] < 3 {
				return reconcile.Result{}, errFailed
			}
			return reconcile.Result{}, nil
		}), remote.LanesOptions[string]{Judge: func(_ string, _ time.Duration, err error, _ bool) remote.Verdict {
			return remote.Verdict{Slow: err != nil, Retry: true, After: time.Minute}
		}})
		f := &fleet{lanes: lanes}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, lane := range []*remote.Lane[string]{lanes.Regular, lanes.Slow} {
			c := must(controller.NewTypedUnmanaged(lane.String(), controller.TypedOptions[string]{
				Reconciler: lane, UsePriorityQueue: new(true), SkipNameValidation: new(true),
			}))
			if err := c.Watch(lane); err != nil {
				t.Fatal(err)
			}

			running.Go(func() { _ = c.Start(ctx) })
		}

		synctest.Wait()
		f.lanes.Regular.Add(0, 0, "a/x")
		pass(90 * time.Second)
		mu.Lock()
		if calls["a/x"] != 2 {
			t.Errorf("%d calls after 90 s, want 2", calls["a/x"])
		}

		mu.Unlock()
		pass(time.Hour)
		if calls["a/x"] != 3 {
			t.Errorf("%d calls, want 3", calls["a/x"])
		}

		cancel()
		running.Wait()
	})
}

// useOneProcessor is for tests in a bubble of synctest. The timers of a bubble share one context of
// the race detector, and with more processors two threads may use the context at the same time. The
// race detector of Go 1.26 crashes then (golang/go#78156), in about one of ten runs of the
// controllers with many workers.
func useOneProcessor(t *testing.T) {
	t.Helper()
	former := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(former) })
}

// pass lets virtual time pass, until everything in the bubble waits. What the others wrote may be
// read then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
