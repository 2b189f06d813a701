package controllerruntime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

type (
	stringSource = controllerruntime.Source[string]
	stringQueue  = workqueue.TypedRateLimitingInterface[string]
)

// byWatched maps a delivery to the names of its runtime and object.
func byWatched(_ context.Context, d core.Delivery) ([]string, error) {
	return []string{fmt.Sprintf("%s:%s", d.Runtime, d.Event.Watched.Name)}, nil
}

func delivery(runtime, watched string) core.Delivery {
	d := core.Delivery{Runtime: core.RuntimeID(runtime), Manager: "operator"}
	d.Event.Watched.Name = watched
	return d
}

func newQueue(t testing.TB) workqueue.TypedRateLimitingInterface[string] {
	t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	t.Cleanup(queue.ShutDown)
	return queue
}

func started[request comparable](
	t testing.TB, source *controllerruntime.Source[request], queue workqueue.TypedRateLimitingInterface[request],
) context.CancelFunc {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	check(t, source.Start(ctx, queue))
	return cancel
}

// drain returns all requests in the queue.
func drain(queue workqueue.TypedRateLimitingInterface[string]) []string {
	got := []string{}
	for range queue.Len() {
		item, _ := queue.Get()
		got = append(got, item)
		queue.Done(item)
	}

	return got
}

// Each delivery is acknowledged, and equal requests are in the queue once.
func TestSourceEnqueues(t *testing.T) {
	t.Parallel()

	source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
	queue := newQueue(t)
	started(t, source, queue)
	for _, d := range []core.Delivery{
		delivery("skr-1", "a"), delivery("skr-2", "a"), delivery("skr-1", "a"), delivery("skr-1", "b"),
		delivery("skr-1", "a"),
	} {
		if err := source.Handle(t.Context(), d); err != nil {
			t.Errorf("have %v, want the delivery to be acknowledged", err)
		}
	}

	// Equal requests collapse.
	if diff := cmp.Diff([]string{"skr-1:a", "skr-2:a", "skr-1:b"}, drain(queue)); diff != "" {
		t.Errorf("in the queue (-want +have):\n%s", diff)
	}
}

// A source acknowledges nothing while its controller cannot reconcile, and the error says why.
func TestSourceNotReady(t *testing.T) {
	t.Parallel()

	leads := make(chan struct{})
	follows := make(chan struct{})
	close(leads)
	type start = func(stringQueue) (stop context.CancelFunc)
	once := func(start start, q stringQueue) { start(q) }
	for name, tc := range map[string]struct {
		opts  controllerruntime.SourceOptions
		setUp func(start, stringQueue)
		want  string // "" acknowledges.
	}{
		"before the controller starts": {
			setUp: func(start, stringQueue) {}, want: "not ready: the controller has not started",
		},
		"while it runs": {setUp: once},
		"after its context ended": {
			setUp: func(start start, q stringQueue) { start(q)() }, want: "not ready: the controller has stopped",
		},
		"after its queue shut down": {
			setUp: func(start start, q stringQueue) { start(q); q.ShutDown() }, want: "not ready: the controller has stopped",
		},
		"while the controller warms up": {
			opts: controllerruntime.SourceOptions{Elected: follows}, setUp: once, want: "not ready: another replica leads",
		},
		"after the election":       {opts: controllerruntime.SourceOptions{Elected: leads}, setUp: once},
		"with the next controller": {setUp: func(start start, q stringQueue) { start(newQueue(t))(); start(q) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			source := controllerruntime.NewSource(byWatched, tc.opts)
			queue := newQueue(t)
			tc.setUp(func(q stringQueue) context.CancelFunc { return started(t, source, q) }, queue)
			err := source.Handle(t.Context(), delivery("skr-1", "a"))
			if tc.want == "" {
				if err != nil || queue.Len() != 1 {
					t.Errorf("have %v and %d requests, want one request", err, queue.Len())
				}
				return
			}
			if err == nil || err.Error() != tc.want || !errors.Is(err, core.ErrNotReady) || core.IsPermanent(err) {
				t.Errorf("have %v, want a temporary %q", err, tc.want)
			}
			if err := source.Resync("skr-1:a"); !errors.Is(err, core.ErrNotReady) {
				t.Errorf("a resync: have %v, want %v", err, core.ErrNotReady)
			}
			if queue.Len() != 0 {
				t.Errorf("%d requests in the queue, want none", queue.Len())
			}
		})
	}
}

// A queue drops requests after its end, so their events must not be acknowledged.
func TestSourceStopsMeanwhile(t *testing.T) {
	t.Parallel()

	queue := newQueue(t)
	source := controllerruntime.NewSource(func(context.Context, core.Delivery) ([]string, error) {
		queue.ShutDown()
		return []string{"a"}, nil
	}, controllerruntime.SourceOptions{})
	started(t, source, queue)
	if err := source.Handle(t.Context(), delivery("skr-1", "a")); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("have %v, want not ready", err)
	}
}

// An error or a panic of the map function leaves the event with its sender, with a reason.
func TestSourceMapFunc(t *testing.T) {
	t.Parallel()

	errBroken := errors.New("broken")
	returns := func(err error, requests ...string) controllerruntime.MapFunc[string] {
		return func(context.Context, core.Delivery) ([]string, error) { return requests, err }
	}
	for name, tc := range map[string]struct {
		mapFunc  controllerruntime.MapFunc[string]
		requests []string
		is       error
		reason   string // "" acknowledges.
	}{
		"several requests": {mapFunc: returns(nil, "a", "b"), requests: []string{"a", "b"}},
		"no use for it":    {mapFunc: returns(nil)},
		"cold cache": {
			mapFunc: returns(fmt.Errorf("no answer: %w", core.ErrNotReady)), is: core.ErrNotReady, reason: "not_ready",
		},
		"half an answer": {mapFunc: returns(errBroken, "a"), is: errBroken, reason: "map_failed"},
		"hopeless":       {mapFunc: returns(hopeless{errBroken}), reason: "map_failed"},
		"panic": {
			mapFunc: func(context.Context, core.Delivery) ([]string, error) { panic("oh no") },
			reason:  "map_panicked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			queue := newQueue(t)
			told := handled{}
			logged := bytes.Buffer{}
			source := controllerruntime.NewSource(tc.mapFunc, controllerruntime.SourceOptions{
				Handled: told.add,
				Logger:  slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			started(t, source, queue)
			err := source.Handle(t.Context(), delivery("skr-1", "a"))
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("have error %v, want %v", err, tc.is)
			}
			if (err == nil) != (tc.reason == "") || err != nil && string(core.ReasonOf(err)) != tc.reason {
				t.Errorf("have error %v, want one: %q", err, tc.reason)
			}
			if core.IsPermanent(err) != (name == "hopeless") {
				t.Errorf("%v: permanent %v, as the cause is not", err, core.IsPermanent(err))
			}
			if diff := cmp.Diff(append([]string{}, tc.requests...), drain(queue)); diff != "" {
				t.Errorf("in the queue (-want +have):\n%s", diff)
			}
			if diff := cmp.Diff(handled{fmt.Sprintf("skr-1 %d %v", len(tc.requests), err)}, told); diff != "" {
				t.Errorf("calls of the hook (-want +have):\n%s", diff)
			}
			if !strings.Contains(logged.String(),
				`msg="handled a delivery" runtime=skr-1 manager=operator kind=changed`) {
				t.Errorf("logged %q, want the delivery", &logged)
			}
			if panicked := name == "panic"; strings.Contains(logged.String(), `panic="oh no" stack=`) != panicked {
				t.Errorf("logged %q, want a panic: %v", &logged, panicked)
			}
		})
	}
}

// hopeless is a cause without a reason.
type hopeless struct{ error }

func (hopeless) Retryable() bool { return false }

// handled stores the calls of the hook.
type handled []string

func (h *handled) add(report hook.Handled) {
	*h = append(*h, fmt.Sprintf("%s %d %v", report.Delivery.Runtime, report.Requests, report.Err))
}

func TestSourceServesOneController(t *testing.T) {
	t.Parallel()

	source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
	queue := newQueue(t)
	started(t, source, queue)
	if err := source.Start(t.Context(), newQueue(t)); err == nil ||
		!strings.Contains(err.Error(), "create one source for each controller") {
		t.Errorf("have %v, want the second controller to be refused", err)
	}
	if err := source.Handle(t.Context(), delivery("skr-1", "a")); err != nil || queue.Len() != 1 {
		t.Errorf("have %v and %d requests, want the first controller to be served", err, queue.Len())
	}

	none := controllerruntime.NewSource[string](nil, controllerruntime.SourceOptions{})
	for _, source := range []*controllerruntime.Source[string]{none, nil} {
		if err := source.Start(t.Context(), queue); err == nil || !strings.Contains(err.Error(), "map function") {
			t.Errorf("have %v, want the missing argument in the error", err)
		}
	}
}

func TestSourceRanksChangesAboveResyncs(t *testing.T) {
	t.Parallel()

	queue := priorityqueue.New[string](t.Name())
	t.Cleanup(queue.ShutDown)
	source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
	started[string](t, source, queue)
	low := handler.LowPriority
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: &low}, "skr-1:listed", "skr-1:changed")
	for _, d := range []core.Delivery{resyncOf("skr-2"), delivery("skr-1", "changed"), delivery("skr-1", "new")} {
		check(t, source.Handle(t.Context(), d))
	}

	check(t, source.Resync("skr-3:object"))
	type ranked struct {
		Item     string
		Priority int
	}
	var got []ranked
	for range queue.Len() {
		item, priority, _ := queue.GetWithPriority()
		got = append(got, ranked{item, priority})
		queue.Done(item)
	}

	want := []ranked{{"skr-1:changed", 0}, {"skr-1:new", 0}, {"skr-1:listed", low}, {"skr-2:", low}, {"skr-3:object", low}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the queue (-want +have):\n%s", diff)
	}
}

// inPriorityQueue runs a test in virtual time, with a source that a controller has started.
func inPriorityQueue(
	t *testing.T, run func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		queue := priorityqueue.New[string]("")
		source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
		started[string](t, source, queue)
		run(t, source, queue)
	})
}

// resyncOf returns a resync.
func resyncOf(runtime string) core.Delivery {
	d := delivery(runtime, "")
	d.Event.Resync = true
	return d
}

// One worker takes 50 ms for each reconcile, and two runtimes change all the time. The queue does
// not age, so the resync of a quiet runtime, or the poll of one that is followed, would wait for
// ever.
func TestALoudRuntimeDoesNotStarveAResync(t *testing.T) {
	inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
		t.Helper()

		const bound = 10 * time.Second
		handle := func(d core.Delivery) {
			check(t, source.Handle(t.Context(), d))
		}
		reconciled := map[string][]time.Duration{}
		begun := time.Now()
		var group sync.WaitGroup
		group.Go(func() {
			for n := 0; time.Since(begun) < 2*bound; n++ {
				handle(delivery("loud"+strconv.Itoa(n%2), "a"))
				<-time.After(25 * time.Millisecond)
			}
			queue.ShutDown()
		})
		group.Go(func() {
			for {
				item, shutdown := queue.Get()
				if shutdown {
					return
				}

				<-time.After(50 * time.Millisecond)
				queue.Done(item)
				reconciled[item] = append(reconciled[item], time.Since(begun))
			}
		})
		<-time.After(time.Second)
		// It was silent for a moment, and would be polled within ten hours.
		const hours = 10 * time.Hour
		watched := must(fleet.New(fleet.Options{PollFresh: hours, PollUnproved: hours, PollOtherwise: hours}))
		source.Follow(watched, "my-operator")
		beating(watched, "quiet", "my-operator", false)
		beating(watched, "quiet", "my-operator", true)
		handle(resyncOf("quiet"))
		handle(resyncOf("quiet"))
		const many = 25 // More than one runtime may change in a second beside others.
		for n := range many {
			handle(delivery("burst", strconv.Itoa(n)))
		}

		group.Wait()
		at := reconciled["quiet:"]
		if len(at) != 1 || at[0] > time.Second+bound {
			t.Errorf("the quiet runtime is reconciled at %v, want once within %v", at, bound)
		}

		for n := range many {
			if at := reconciled["burst:"+strconv.Itoa(n)]; len(at) == 0 || at[0] > time.Second+bound {
				t.Errorf("object %d of a burst is reconciled at %v, want it within %v", n, at, bound)
			}
		}

		if n := len(reconciled["loud0:a"]) + len(reconciled["loud1:a"]); n < 350 {
			t.Errorf("the loud runtimes are reconciled %d times, want them at most times", n)
		}
	})
}

// A runtime is resynced again and again beside two loud runtimes. Each of its resyncs gets the
// priority of a change in time: the first, and those that come after it was reconciled.
func TestALoudRuntimeStarvesNoLaterResync(t *testing.T) {
	inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
		t.Helper()

		const (
			bound  = 10 * time.Second
			rounds = 3
		)

		reconciled := make(chan string, 10_000)

		var group sync.WaitGroup
		group.Go(func() { // One worker, which two loud runtimes keep busy.
			for item, shutdown := queue.Get(); !shutdown; item, shutdown = queue.Get() {
				<-time.After(50 * time.Millisecond)
				queue.Done(item)

				if strings.HasPrefix(item, "quiet") {
					reconciled <- item
				}
			}
		})

		stop := make(chan struct{})
		group.Go(func() {
			for n := 0; !isClosed(stop); n++ {
				check(t, source.Handle(t.Context(), delivery("loud"+strconv.Itoa(n%2), "a")))
				<-time.After(25 * time.Millisecond)
			}
		})

		for round := range rounds {
			for _, quiet := range []string{"quiet1", "quiet2"} {
				check(t, source.Handle(t.Context(), resyncOf(quiet)))
			}

			<-time.After(bound)
			seen := make(map[string]bool) // Under load, a request may be reconciled once more.
			for range len(reconciled) {
				seen[<-reconciled] = true
			}

			if len(seen) != 2 {
				t.Errorf("round %d: %d of 2 quiet runtimes are reconciled within %v", round+1, len(seen), bound)
			}
		}

		close(stop)
		queue.ShutDown()
		group.Wait()
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Ten workers take 100 ms for each reconcile. One runtime names 200 other objects a second, as its
// share allows. A change of a quiet runtime does not wait for them.
func TestALoudRuntimeDoesNotDelayChanges(t *testing.T) {
	inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
		t.Helper()

		const objects = 200 * 60
		var reconciled sync.Map
		var workers sync.WaitGroup
		for range 10 {
			workers.Go(func() {
				for item, shutdown := queue.Get(); !shutdown; item, shutdown = queue.Get() {
					<-time.After(100 * time.Millisecond)
					queue.Done(item)
					reconciled.Store(item, time.Now())
				}
			})
		}

		handle := func(d core.Delivery) {
			check(t, source.Handle(t.Context(), d))
		}
		var changed time.Time
		at := func(item string) time.Time {
			when, _ := reconciled.Load(item)
			seen, _ := when.(time.Time)
			return seen
		}

		last := make([]time.Time, objects)
		for n := range objects {
			if n == objects/2 {
				changed = time.Now()
				handle(delivery("quiet", "a"))
			}

			last[n] = time.Now()
			handle(delivery("loud", strconv.Itoa(n)))
			<-time.After(5 * time.Millisecond)
		}

		<-time.After(time.Hour)
		if seen := at("quiet:a"); seen.IsZero() || seen.Sub(changed) > time.Second {
			t.Errorf("the quiet runtime is reconciled at %v, want it within 1 s of %v", seen, changed)
		}

		resynced := at("loud:")
		for n := range objects {
			isReconciled := at("loud:"+strconv.Itoa(n)).After(last[n]) || resynced.After(last[n])
			if !isReconciled {
				t.Fatalf("object %d of the loud runtime is not reconciled, nor the runtime after its change", n)
			}
		}

		queue.ShutDown()
		workers.Wait()
	})
}

// A long list does not delay changes, and changes do not delay it for ever.
func TestALongListAndChanges(t *testing.T) {
	inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
		t.Helper()

		list := make([]string, 200)
		for i := range list {
			list[i] = "listed:" + strconv.Itoa(i)
		}

		list[len(list)-1] = "quiet:"
		check(t, errors.Join(source.Resync(list...), source.Resync(list...),
			source.Handle(t.Context(), resyncOf("quiet")))) // The last does not wait for the list.
		begun := time.Now()
		resynced := time.Duration(0)
		reconciled := map[string]int{}
		slowest := time.Duration(0)
		for i := 0; time.Since(begun) < 30*time.Second; i++ {
			check(t, source.Handle(t.Context(), delivery(strconv.Itoa(i), "changed")))
			added := time.Now()
			for item := ""; item != strconv.Itoa(i)+":changed"; reconciled[item]++ {
				item, _ = queue.Get()
				<-time.After(40 * time.Millisecond)
				queue.Done(item)
			}

			slowest = max(slowest, time.Since(added))
			if resynced == 0 && reconciled["quiet:"] > 0 {
				resynced = time.Since(begun)
			}
		}

		if resynced > 10*time.Second {
			t.Errorf("a resync of a runtime of the list took %v, want 10 s at most", resynced)
		}

		listed := 0
		for _, r := range list {
			listed += min(reconciled[r], 1)
		}

		if slowest > 200*time.Millisecond || listed < len(list) {
			t.Errorf("a change took %v and %d of %d were listed, want 200 ms at most and all", slowest, listed, len(list))
		}

		queue.ShutDown()
	})
}

// Without load, a resync is reconciled once, although the queue does not tell that it was.
func TestAResyncIsReconciledOnce(t *testing.T) {
	inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
		t.Helper()
		check(t, source.Handle(t.Context(), resyncOf("quiet")))
		item, _ := queue.Get()
		queue.Done(item)
		<-time.After(time.Minute)
		if n := queue.Len(); n != 0 || item != "quiet:" {
			t.Errorf("%q was reconciled, and %d requests wait, want the resync and none", item, n)
		}

		queue.ShutDown()
	})
}

// Every delivery that is acknowledged while a controller stops is in its queue.
func TestSourceConcurrently(t *testing.T) {
	t.Parallel()

	const senders, each = 8, 200
	source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
	queue := newQueue(t)
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		acked = map[string]bool{}
	)
	for sender := range senders {
		group.Go(func() {
			for i := range each {
				d := delivery(strconv.Itoa(sender), strconv.Itoa(i))
				if err := source.Handle(t.Context(), d); err == nil {
					mu.Lock()
					acked[fmt.Sprintf("%d:%d", sender, i)] = true
					mu.Unlock()
				}
				if sender == 0 && i == each/4 {
					if err := source.Start(t.Context(), queue); err != nil {
						t.Error(err)
					}
				}
				if sender == 0 && i == each*3/4 {
					queue.ShutDown()
				}
			}
		})
	}

	group.Wait()
	for _, request := range drain(queue) {
		delete(acked, request)
	}

	if len(acked) > 0 {
		t.Errorf("acknowledged, but not in the queue: %v", acked)
	}
}

// A resync begins with its low priority, and fails. Two loud runtimes then keep the only worker
// busy. The retry of the resync gets the priority of a change in time, too.
func TestALoudRuntimeStarvesNoRetryOfAResync(t *testing.T) {
	for title, fails := range map[string]bool{"control": false, "failed reconcile": true} {
		t.Run(title, func(t *testing.T) {
			inPriorityQueue(t, func(t *testing.T, source *stringSource, queue priorityqueue.PriorityQueue[string]) {
				t.Helper()

				const bound = 10 * time.Second

				failed := make(chan struct{})
				succeeded := make(chan struct{}, 100)
				reconcile := func(item string) error {
					if item != "quiet:" {
						return nil
					}

					source.Client(item, "quiet", nil)
					if fails && !isClosed(failed) {
						close(failed)
						return errors.New("conflict")
					}

					succeeded <- struct{}{}
					return nil
				}

				check(t, source.Handle(t.Context(), delivery("other", "a"))) // It delays the resync for a moment.
				check(t, source.Handle(t.Context(), resyncOf("quiet")))

				var group sync.WaitGroup
				group.Go(func() {
					for {
						item, priority, shutdown := queue.GetWithPriority()
						if shutdown {
							return
						}

						<-time.After(200 * time.Millisecond)
						if err := reconcile(item); err != nil { // As a controller does.
							queue.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &priority}, item)
						} else {
							queue.Forget(item)
						}

						queue.Done(item)
					}
				})
				if fails {
					<-failed
				}

				begun := time.Now()
				for n := 0; time.Since(begun) < bound; n++ {
					check(t, source.Handle(t.Context(), delivery("loud"+strconv.Itoa(n%2), strconv.Itoa(n%3))))
					<-time.After(60 * time.Millisecond)
				}

				if len(succeeded) == 0 {
					t.Errorf("the resync is not reconciled within %v", bound)
				}

				queue.ShutDown()
				group.Wait()
			})
		})
	}
}
