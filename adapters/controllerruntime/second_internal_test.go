package controllerruntime

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// raising is a target in virtual time, whose worker reconciles all requests immediately.
type raising struct {
	*target[string]

	t *testing.T
}

func inRaising(t *testing.T, run func(r *raising)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		queue := priorityqueue.New[string]("")
		run(&raising{newTarget(t.Context().Done(), queue), t})
		queue.ShutDown()
		synctest.Wait()
	})
}

func (r *raising) reconcileAll() {
	synctest.Wait()
	for r.queue.Len() > 0 {
		item, _ := r.queue.Get()
		r.queue.Done(item)
	}
}

// wants returns the time until a request gets the priority of a change, 0 if it never will.
func (r *raising) wants(request string) time.Duration {
	r.raises.mu.Lock()
	defer r.raises.mu.Unlock()
	if at := r.raises.raised[request]; at != nil {
		return time.Until(at.end)
	}
	return 0
}

// A long list was reconciled. A later one does not wait for it.
func TestALaterListWaitsForNoFormerOne(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		many := make([]string, 200)
		for n := range many {
			many[n] = strconv.Itoa(n)
		}

		r.addListed("", many...)
		if wait := r.wants("199"); wait < 2*resyncWait {
			r.t.Errorf("control: the last of a long list waits %v, want longer", wait)
		}

		r.reconcileAll()
		time.Sleep(resyncWait + time.Second)
		synctest.Wait()

		r.addListed("", "later")
		if wait := r.wants("later"); wait != resyncWait {
			r.t.Errorf("a later list waits %v, want %v", wait, resyncWait)
		}
	})
}

// The earlier of two resyncs of one runtime decides, in any order.
func TestTheEarlierOfTwoResyncsDecides(t *testing.T) {
	t.Parallel()
	for _, waits := range [][]time.Duration{{0, time.Hour}, {time.Hour, 0}} {
		inRaising(t, func(r *raising) {
			for _, wait := range waits {
				r.addResync("quiet", wait)
			}
			if wait := r.wants("quiet"); wait != resyncWait {
				r.t.Errorf("resyncs after %v get their priority in %v, want %v", waits, wait, resyncWait)
			}
		})
	}
}

// A queue that is empty has no request that waits, except one whose wait has just ended.
func TestAnEmptyQueueForgetsWhatWasReconciled(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		r.addResync("first", 0)
		r.addResync("second", time.Second)
		r.addResync("just begun", resyncWait-time.Millisecond)
		r.addResync("later", time.Minute)
		time.Sleep(2 * time.Second)
		r.reconcileAll()
		time.Sleep(resyncWait - 2*time.Second - time.Millisecond)
		r.reconcileAll()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		for request, waits := range map[string]bool{"first": false, "second": false, "just begun": true, "later": true} {
			if have := r.wants(request) > 0; have != waits {
				r.t.Errorf("%s gets the priority of a change: %t, want %t", request, have, waits)
			}
		}
	})
}

// The book counts its objects, also after some were forgotten.
func TestTheSizeOfTheBook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited)}
		see := func(runtime core.RuntimeID, name string) {
			book.observeEvent(runtime, "r", &core.WatchEvent{UID: types.UID(name), Base: 5})
		}
		for _, runtime := range []core.RuntimeID{"a", "b"} {
			see(runtime, "1")
			see(runtime, "2")
		}

		time.Sleep(awaitedFor)
		see("b", "3")
		time.Sleep(awaitedFor / 2)
		see("c", "1")
		if book.size != 2 || len(book.runtimes["b"]) != 1 || len(book.bySize[2]) != 0 || len(book.bySize[1]) != 2 {
			t.Errorf("size %d, sizes of runtimes %v, want one object of b and c", book.size, book.bySize[:3])
		}
	})
}

// A runtime takes the place of one that has two objects more, and of none with as many. Otherwise
// two runtimes would take places from each other for ever.
func TestAFullBookTakesFromTheLargest(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]bool{0: true, 1: false, 2: false} {
		book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited)}
		for _, name := range []types.UID{"1", "2"} {
			book.observeEvent("a", "r", &core.WatchEvent{UID: name, Base: 5})
		}

		if have := book.evictPlace(size); have != want {
			t.Errorf("a runtime with %d objects takes a place of one with 2: %t, want %t", size, have, want)
		}
	}
}

// A watch that was interrupted reports a deletion by the last state.
func TestTheRuntimeOfALateDeletion(t *testing.T) {
	t.Parallel()

	r := &Runtimes{identify: func(object client.Object) core.RuntimeID { return core.RuntimeID(object.GetName()) }}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "skr-1"}}
	for _, deleted := range []any{object, toolscache.DeletedFinalStateUnknown{Key: "skr-1", Obj: object}} {
		if id := r.idOf(deleted); id != "skr-1" {
			t.Errorf("%T is of runtime %q, want skr-1", deleted, id)
		}
	}

	if id := r.idOf(toolscache.DeletedFinalStateUnknown{Key: "skr-1"}); id != "" {
		t.Errorf("an unknown state is of runtime %q", id)
	}
}

// A runtime names 200 other objects a second, as its share allows, and the only worker is busy most
// of the time, so that the queue is seldom empty. The number of requests that wait for a higher
// priority is bounded, also when each request is reconciled in the end.
func TestALoudRuntimeHasFewTimers(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		const rate, busy, minutes = 200, 3 * time.Second, 10
		overflows := 0
		for n := range rate * 60 * minutes {
			if !r.addChange("loud", strconv.Itoa(n)) {
				overflows++
			}

			time.Sleep(time.Second / rate)
			if n%int(busy.Seconds()*rate) == 0 {
				r.reconcileAll()
			}
		}

		r.raises.mu.Lock()
		defer r.raises.mu.Unlock()
		if len(r.raises.raised) > mostRaised || overflows == 0 {
			r.t.Errorf("%d requests have a timer, want at most %d, and %d that have none", len(r.raises.raised), mostRaised, overflows)
		}
	})
}

// A request that is being reconciled needs no higher priority, unless it came again a moment ago.
func TestAReconcileEndsTheWaitForPriority(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		r.addListed("", "listed", "again", "of others")
		r.addResync("polled later", time.Minute)
		time.Sleep(time.Second)
		r.addListed("", "again")
		for _, request := range []string{"listed", "again", "polled later"} {
			r.noteBegin("", request)
		}

		for request, waits := range map[string]bool{"listed": false, "again": true, "of others": true, "polled later": true} {
			if have := r.wants(request) > 0; have != waits {
				r.t.Errorf("%s waits for a higher priority: %t, want %t", request, have, waits)
			}
		}

		if r.raises.waiting[""] != 2 {
			r.t.Errorf("%d requests of lists wait for one another, want 2", r.raises.waiting[""])
		}
	})
}

// A controller tries a failed request again with its priority. The request gets the priority of a
// change if it has failed since its reconcile began, and it keeps its backoff.
func TestAFailedRequestGetsAHigherPriority(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		of     core.RuntimeID
		fails  int
		raised bool
	}{
		"succeeds":                    {"", 0, false},
		"fails":                       {"", 1, false}, // Its retry does not, before anything is noticed.
		"fails for minutes":           {"", 16, true},
		"of a loud runtime, the same": {"loud", 16, true},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			inRaising(t, func(r *raising) {
				r.addListed(test.of, "r")
				time.Sleep(time.Second)
				priority := r.failTimes("r", test.fails)
				if isRaised := priority == 0; isRaised != test.raised {
					r.t.Errorf("the last priority is %d, want that of a change: %t", priority, test.raised)
				}

				time.Sleep(begunFor + resyncWait)
				synctest.Wait()
				if len(r.raises.begun.requests) != 0 || r.raises.begun.isChecking {
					r.t.Errorf("%v are followed for ever", r.raises.begun.requests)
				}
			})
		})
	}
}

// failTimes reconciles a request until it has failed so many times, and returns its last priority.
func (r *raising) failTimes(request string, fails int) (priority int) {
	r.t.Helper()

	var backoff time.Duration
	for n := range fails + 1 {
		ready := time.Now()
		_, priority, _ = r.ranked.GetWithPriority()
		if waited := time.Since(ready); waited < backoff {
			r.t.Errorf("attempt %d comes after %v, want its backoff of %v", n+1, waited, backoff)
		}

		r.noteBegin("", request)
		if n < fails {
			backoff = 5 * time.Millisecond << n
			r.ranked.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &priority}, request)
		} else {
			r.ranked.Forget(request)
		}

		r.queue.Done(request)
	}

	return priority
}

// All changes of a loud runtime fail. Few of their retries have the priority of a change.
func TestFailuresOfALoudRuntimeWaitForOneAnother(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		const many = 200
		for n := range many {
			r.addListed("loud", strconv.Itoa(n))
		}

		time.Sleep(time.Second)
		for range many {
			item, priority, _ := r.ranked.GetWithPriority()
			r.noteBegin("", item)
			r.ranked.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &priority}, item)
			r.queue.Done(item)
		}

		time.Sleep(resyncWait)
		synctest.Wait()
		var last time.Duration
		for n := range many {
			last = max(last, r.wants(strconv.Itoa(n)))
		}

		if want := (many - 1) * listedPace; last != want {
			r.t.Errorf("the last of %d retries gets its priority after %v, want %v", many, last, want)
		}
	})
}

// Requests that were reconciled take memory for a while, and not without bound.
func TestFewBegunRequestsAreFollowed(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		for n := range 2 * mostBegun {
			r.addResync(strconv.Itoa(n), 0)
		}

		time.Sleep(time.Second)
		for n := range 2 * mostBegun {
			r.noteBegin("", strconv.Itoa(n))
		}

		if n := len(r.raises.begun.requests); n != mostBegun {
			r.t.Errorf("%d requests are followed, want %d", n, mostBegun)
		}
	})
}

// The poll of a runtime waits for an hour. A list and a change of a loud runtime wait as they do
// without the poll.
func TestAPollDelaysNoLaterRequest(t *testing.T) {
	t.Parallel()
	for _, of := range []core.RuntimeID{"", "loud"} {
		for _, polled := range []bool{false, true} { // The first is the control.
			inRaising(t, func(r *raising) {
				if polled {
					r.addResync("r", time.Hour)
				}

				time.Sleep(time.Minute)
				r.addListed(of, "another", "r", "r")
				if wait, want := r.wants("r"), resyncWait+listedPace; wait != want {
					r.t.Errorf("of %q, polled later %t: it gets the priority of a change in %v, want %v", of, polled, wait, want)
				}
				if r.raises.waiting[of] != 2 {
					r.t.Errorf("of %q: %d wait for one another, want 2", of, r.raises.waiting[of])
				}
			})
		}
	}
}

// Without room for another request, the log and a resync are in its place, also if a poll of it
// waits.
func TestAPollTakesNoPlaceOfALoudRuntime(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		r.addResync("r", time.Hour)
		for n := range mostRaised {
			r.addListed("loud", strconv.Itoa(n))
		}

		if r.addListed("loud", "r") {
			r.t.Error("a request that waits for its poll has room, want a resync in its place")
		}
	})
}
