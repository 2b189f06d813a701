package controllerruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// rechecking is a handler that checks events after a time.
type rechecking time.Duration

func (rechecking) Handle(context.Context, core.Delivery) error { return nil }
func (r rechecking) RecheckAfter() time.Duration               { return time.Duration(r) }

// A sender waits for the slower of two handlers, whatever their order is.
func TestTheSlowerHandlerDecides(t *testing.T) {
	t.Parallel()
	for _, handlers := range [][]core.Handler{{rechecking(50 * ms), rechecking(20 * ms)}, {rechecking(20 * ms), rechecking(50 * ms)}} {
		if have := controllerruntime.Several(handlers...).(core.Rechecker).RecheckAfter(); have != 50*ms {
			t.Errorf("handlers %v check after %v, want 50 ms", handlers, have)
		}
	}
}

// Events may overtake each other. The highest version before a write is the one that a reconcile
// must have passed.
func TestAnEventThatWasOvertakenLowersNoVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := operateMatched(t)
		o.write(6)
		time.Sleep(ms) // In a bubble.
		o.write(5)
		o.there.version = "6"
		o.get(o.client())
		if n := o.after(150 * ms); n != 1 {
			t.Errorf("%d requests at the check, want one for the later write", n)
		}
	})
}

// An object was changed and then deleted. Its absence answers for the deletion only, if no event
// names an update.
func TestAnUpdateBeforeADeletionIsChecked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first core.Operation
		want  int
	}{
		"control: two deletions": {core.OperationDelete, 0},
		"an update":              {core.OperationUpdate, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := operateMatched(t)
				for n, operation := range []core.Operation{tt.first, core.OperationDelete} {
					d := o.written(int64(5 + n))
					d.Event.Operation = operation
					o.deliver(d)
					time.Sleep(ms) // In a bubble.
				}

				o.there.uid = ""
				o.get(o.client())
				if n := o.after(150 * ms); n != tt.want {
					t.Errorf("%d requests at the check, want %d", n, tt.want)
				}
			})
		})
	}
}

// Many runtimes are cut off in the same moment. Their reconciles are spread over the time.
func TestACutOfManyRuntimesIsSpread(t *testing.T) {
	t.Parallel()

	const many = 60
	synctest.Test(t, func(t *testing.T) {
		watched := must(fleet.New(fleet.Options{PollOtherwise: time.Minute}))
		source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
		queue := newQueue(t)
		source.Follow(watched, "my-operator")
		started(t, source, queue)
		for n := range many {
			beating(watched, core.RuntimeID(strconv.Itoa(n)), "my-operator", false)
		}

		for n := range many {
			beating(watched, core.RuntimeID(strconv.Itoa(n)), "my-operator", true)
		}

		time.Sleep(10 * time.Second)
		synctest.Wait()
		early := queue.Len()
		time.Sleep(time.Minute)
		synctest.Wait()
		if all := queue.Len(); early > many/2 || all != many {
			t.Errorf("%d requests after 10 s and %d after 70 s, want a part and %d", early, all, many)
		}

		queue.ShutDown()
	})
}

// A controller that has ended needs no events. One that runs does.
func TestAControllerThatHasEndedMissesNoEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, ends := range []bool{true, false} {
			var lines bytes.Buffer
			source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{
				Logger: slog.New(slog.NewTextHandler(&lines, nil)),
			})
			end := started(t, source, newQueue(t))
			time.Sleep(time.Second)
			if ends {
				end()
			}

			time.Sleep(time.Minute)
			synctest.Wait()
			if logged := lines.Len() > 0; logged == ends {
				t.Errorf("the controller has ended: %t, and the log is %q", ends, &lines)
			}
		}
	})
}

// One of two requests fits into the channel. The hook gets the number that was sent.
func TestAChannelWithRoomForOneOfTwo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		close(leads)
		sent := []int{}
		two := func(context.Context, core.Delivery) ([]reconcile.Request, error) {
			return []reconcile.Request{{NamespacedName: owner("one")}, {NamespacedName: owner("two")}}, nil
		}
		channel := make(chan event.GenericEvent, 1)
		handler := controllerruntime.ToChannel(channel, two, controllerruntime.SourceOptions{
			Elected: leads, Handled: func(h hook.Handled) { sent = append(sent, h.Requests) },
		})
		if err := handler.Handle(t.Context(), delivery("skr-1", "")); !errors.Is(err, core.ErrNotReady) {
			t.Errorf("error %v of a channel that is full, want not ready", err)
		}
		if !slices.Equal(sent, []int{1}) {
			t.Errorf("the hook got %v requests, want 1", sent)
		}
	})
}

// tracked is a fleet that knows what a cache has.
type tracked struct {
	*controllerruntimetest.Cache

	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
}

func track(t *testing.T, opts controllerruntime.RuntimesOptions) *tracked {
	t.Helper()
	objects := controllerruntimetest.NewCache()
	runtimes, err := controllerruntime.NewRuntimes(objects, kyma("", nil, nil), controllerruntime.ByLabel("id"), opts)
	check(t, err)
	return &tracked{objects, runtimes, runningFleet(t)}
}

// runningFleet runs until the bubble ends.
func runningFleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	watched := must(fleet.New(fleet.Options{}))
	go func() {
		take := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		_ = watched.Receiver().Start(t.Context(), map[core.Manager]core.Handler{"one": take, "two": take})
	}()

	return watched
}

// known returns what the fleet knows two seconds later.
func (f *tracked) known() string {
	time.Sleep(2 * time.Second) // In a bubble.
	var all []string
	f.fleet.Range(func(s fleet.Status) bool {
		all = append(all, string(s.Runtime)+"/"+string(s.Manager))
		return true
	})
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (f *tracked) want(t *testing.T, when, want string) {
	t.Helper()
	if known := f.known(); known != want {
		t.Errorf("%s: the fleet knows %q, want %q", when, known, want)
	}
}

func id(runtime string) map[string]string { return map[string]string{"id": runtime} }

// Two calls of Track add up, and so do two managers of one call.
func TestTrackAddsUp(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		f := track(t, controllerruntime.RuntimesOptions{Expected: func(object client.Object, manager core.Manager) bool {
			return manager == "two" || object.GetName() != "only-two"
		}})
		f.Set(kyma("before", nil, id("a")))
		check(t, errors.Join(f.runtimes.Track(f.fleet, "one"), f.runtimes.Track(f.fleet, "two")))
		f.want(t, "an object before", "a/one a/two")
		f.Set(kyma("after", nil, id("b")), kyma("only-two", nil, id("c")))
		f.want(t, "objects after", "a/one a/two b/one b/two c/two")
	})
	synctest.Test(t, func(t *testing.T) {
		f := track(t, controllerruntime.RuntimesOptions{Expected: func(_ client.Object, manager core.Manager) bool {
			return manager == "two"
		}})
		f.Set(kyma("before", nil, id("a")))
		check(t, f.runtimes.Track(f.fleet, "one", "two"))
		f.want(t, "one call for two managers", "a/two")
	})
}

// A runtime stays while one of two objects represents it. An object that represents another runtime
// from now on leaves the new one known.
func TestTheFleetForgetsTheRightRuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := track(t, controllerruntime.RuntimesOptions{})
		check(t, f.runtimes.Track(f.fleet, "one"))
		f.Set(kyma("first", nil, id("a")), kyma("second", nil, id("a")), kyma("third", nil, id("b")))
		f.want(t, "three objects", "a/one b/one")
		f.Delete(owner("first"))
		f.want(t, "one of two is deleted", "a/one b/one")
		f.Set(kyma("third", nil, id("c")))
		f.want(t, "one has another identity", "a/one c/one")
		f.Delete(owner("second"))
		f.want(t, "the last one is deleted", "c/one")
	})
}

// Two listeners may have a fleet each. Both learn of a new runtime and of one that is gone.
func TestTwoFleetsForgetARuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := track(t, controllerruntime.RuntimesOptions{})
		other := &tracked{f.Cache, f.runtimes, runningFleet(t)}
		check(t, errors.Join(f.runtimes.Track(f.fleet, "one"), f.runtimes.Track(other.fleet, "one", "two")))
		f.Set(kyma("first", nil, id("a")), kyma("second", nil, id("b")))
		f.want(t, "the first fleet", "a/one b/one")
		other.want(t, "the second fleet", "a/one a/two b/one b/two")
		f.Delete(owner("first"))
		f.want(t, "the first fleet after a deletion", "b/one")
		other.want(t, "the second fleet after a deletion", "b/one b/two")
	})
}

// Each object that represents a runtime has requests.
func TestEnqueueForEachObject(t *testing.T) {
	t.Parallel()

	runtimes := newRuntimes(t, newFakeCache(t, kyma("one", nil, id("a")), kyma("two", nil, id("a")), kyma("other", nil, id("b"))),
		controllerruntime.ByLabel("id"))
	requests, err := controllerruntime.EnqueueFor(runtimes, func(_ context.Context, object client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: owner(object.GetName() + "-module")}}
	})(t.Context(), core.Delivery{Runtime: "a"})
	check(t, err)
	names := []string{}
	for _, request := range requests {
		names = append(names, request.Name)
	}

	slices.Sort(names)
	if !slices.Equal(names, []string{"one-module", "two-module"}) {
		t.Errorf("requests %q, want one for each of two objects", names)
	}
}
