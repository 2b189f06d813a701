package controllerruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// mostWaiting is the number of requests of one runtime in the queue.
const mostWaiting = 1000

// flood is a source in virtual time, whose map function counts its calls.
type flood struct {
	*stringSource

	t     *testing.T
	queue stringQueue
	log   bytes.Buffer
	// mapped counts the calls for resyncs.
	mapped int
}

// inFlood runs a test of a source with a queue of each kind.
func inFlood(t *testing.T, mapFunc controllerruntime.MapFunc[string], run func(f *flood)) {
	t.Helper()
	for title, newQueue := range map[string]func() stringQueue{
		"priorities": func() stringQueue { return priorityqueue.New[string]("") },
		"plain":      func() stringQueue { return newQueue(t) },
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flood{t: t, queue: newQueue()}
				counting := func(ctx context.Context, d core.Delivery) ([]string, error) {
					if d.Event.Resync {
						f.mapped++
					}
					return mapFunc(ctx, d)
				}

				f.stringSource = controllerruntime.NewSource(counting, controllerruntime.SourceOptions{
					Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
				})
				started[string](t, f.stringSource, f.queue)
				run(f)
				f.queue.ShutDown()
				synctest.Wait()
			})
		})
	}
}

// change handles a change of an object with a number.
func (f *flood) change(runtime string, n int) error {
	return f.Handle(f.t.Context(), delivery(runtime, strconv.Itoa(n)))
}

// reconcileAll returns the requests that were ready.
func (f *flood) reconcileAll() map[string]bool {
	synctest.Wait()
	seen := make(map[string]bool)
	for f.queue.Len() > 0 {
		item, _ := f.queue.Get()
		runtime, _, _ := strings.Cut(item, ":")
		f.Client(item, core.RuntimeID(runtime), nil)
		f.queue.Done(item)
		seen[item] = true
	}

	return seen
}

// A runtime changes ever new objects, slowly or as fast as its share allows, while all workers are
// busy. Its part of the queue has a bound, and one resync replaces all changes beyond it. The map
// function makes few of them, and the log says so.
func TestALoudRuntimeFillsNoQueue(t *testing.T) {
	t.Parallel()
	for _, rate := range []int{10, 200} {
		t.Run(strconv.Itoa(rate), func(t *testing.T) {
			t.Parallel()
			inFlood(t, byWatched, func(f *flood) {
				const changes = 20 * mostWaiting
				for n := range changes {
					check(f.t, f.change("loud", n))
					time.Sleep(time.Second / time.Duration(rate))
				}

				check(f.t, f.change("quiet", 1))
				time.Sleep(2 * time.Second)
				if n := f.queue.Len(); n > mostWaiting+2 {
					f.t.Errorf("%d requests wait, want at most %d of the loud runtime, its resync, and the change of another",
						n, mostWaiting)
				}
				if most := changes/rate + 1; f.mapped > most {
					f.t.Errorf("%d resyncs for %d changes, want at most %d, one a second", f.mapped, changes, most)
				}
				if n := strings.Count(f.log.String(), "a resync replaces"); n == 0 || n > changes/rate/60+1 {
					f.t.Errorf("%d lines in %v, want few:\n%.2000s", n, time.Duration(changes/rate)*time.Second, &f.log)
				}

				seen := f.reconcileAll()
				if !seen["loud:"] || !seen["quiet:1"] || !seen["loud:0"] {
					f.t.Errorf("the resync of the loud runtime was reconciled: %t, the change of another: %t, the first change: %t",
						seen["loud:"], seen["quiet:1"], seen["loud:0"])
				}

				check(f.t, f.change("loud", changes)) // There is room again.
				if seen := f.reconcileAll(); !seen["loud:"+strconv.Itoa(changes)] {
					f.t.Errorf("after the flood, %v are reconciled, want the new change", seen)
				}
			})
		})
	}
}

// A resync that begins before a change says nothing about it.
func TestAResyncReplacesNoLaterChange(t *testing.T) {
	t.Parallel()
	inFlood(t, byWatched, func(f *flood) {
		check(f.t, f.Handle(f.t.Context(), resyncOf("loud"))) // It is ready, and so would be another one.
		for n := range mostWaiting + 1 {
			check(f.t, f.change("loud", n))
		}

		for item := ""; item != "loud:"; {
			item, _ = f.queue.Get()
			f.queue.Done(item)
		}

		time.Sleep(100 * time.Millisecond)
		check(f.t, f.change("loud", 2*mostWaiting))
		time.Sleep(time.Second)
		if seen := f.reconcileAll(); !seen["loud:"] {
			f.t.Error("no resync comes after the change that it replaces")
		}
	})
}

// An operator may have no request for a resync. All changes of a loud runtime then stay in the
// queue. If the map function fails, the sender keeps the change, and so it does if the resync is
// the request that has no room.
func TestWhatNoResyncReplaces(t *testing.T) {
	t.Parallel()

	errDown := errors.New("down")
	for title, test := range map[string]struct {
		resync func(d core.Delivery) ([]string, error)
		fails  bool
		queued int
	}{
		"no request":     {func(core.Delivery) ([]string, error) { return nil, nil }, false, mostWaiting + 1},
		"an error":       {func(core.Delivery) ([]string, error) { return nil, errDown }, true, mostWaiting},
		"the same owner": {func(d core.Delivery) ([]string, error) { return []string{d.Event.Owner.Name}, nil }, true, mostWaiting},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			inFlood(t, func(_ context.Context, d core.Delivery) ([]string, error) {
				if d.Event.Resync {
					return test.resync(d)
				}
				return []string{d.Event.Owner.Name}, nil
			}, func(f *flood) {
				var err error
				for n := range mostWaiting + 1 {
					d := delivery("loud", "a")
					d.Event.Owner.Name = strconv.Itoa(n)
					err = f.Handle(f.t.Context(), d)
					if n < mostWaiting {
						check(f.t, err)
					}
				}

				time.Sleep(2 * time.Second)
				if (err != nil) != test.fails || core.IsPermanent(err) {
					f.t.Errorf("error %v, want one that is not permanent: %t", err, test.fails)
				}
				if n := f.queue.Len(); n != test.queued {
					f.t.Errorf("%d requests wait, want %d", n, test.queued)
				}
			})
		})
	}
}
