package httpserver

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// namedQueue is a fair queue with a name for each waiter. The first letter of a name is its origin.
// A name that ends with an exclamation mark is of work that continues.
type namedQueue struct {
	*fairQueue

	waiters map[string]*waiter
}

func newNamedQueue(slots int, names string) *namedQueue {
	q := &namedQueue{fairQueue: newFairQueue(slots), waiters: make(map[string]*waiter)}
	for name := range strings.FieldsSeq(names) {
		q.waiters[name] = q.requestSlot(name[:1], strings.HasSuffix(name, "!"))
	}
	return q
}

// granted returns the names of the waiters that have a slot.
func (q *namedQueue) granted() (names []string) {
	for name, w := range q.waiters {
		select {
		case <-w.granted:
			names = append(names, name)
		default:
		}
	}

	slices.Sort(names)
	return names
}

func (q *namedQueue) done(name string) {
	q.waiters[name].leaveQueue()
	delete(q.waiters, name)
}

// order ends the waiters one by one, and returns the order in which they got their slots.
func (q *namedQueue) order() string {
	var names []string
	for granted := q.granted(); len(granted) > 0; granted = q.granted() {
		names = append(names, granted[0])
		q.done(granted[0])
	}
	return strings.Join(names, " ")
}

// Slots go round-robin by origin, and alternate between work that continues and new work.
func TestOrderOfGrants(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, request, order string }{
		{"one origin", "a1 a2 a3", "a1 a2 a3"},
		{"round-robin by origin", "a1 a2 a3 a4 b1 b2 c1", "a1 a2 b1 c1 a3 b2 a4"},
		{"continuing work and new work in turn", "a1 a2 a3 a4! a5!", "a1 a4! a2 a5! a3"},
		{"continuing work not behind new work of all origins", "a1 b1 c1 d1 e1 a2!", "a1 a2! b1 c1 d1 e1"},
		{"new work not behind continuing work of one origin", "a1 b1 c1 a2! a3! a4!", "a1 a2! b1 a3! c1 a4!"},
		{"continuing work round-robin by origin", "a1 a2! a3! a4! b1! c1!", "a1 a2! b1! c1! a3! a4!"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.order, newNamedQueue(1, test.request).order()); diff != "" {
				t.Errorf("order (-want +have):\n%s", diff)
			}
		})
	}
}

func TestAbandonedRequestTakesNoSlot(t *testing.T) {
	t.Parallel()

	q := newNamedQueue(2, "a1 b1 a2 a3 c1")
	q.waiters["a2"].leaveQueue()
	q.done("c1")
	q.waiters["c2"] = q.requestSlot("c", false)
	q.done("a1")
	q.done("b1")

	if diff := cmp.Diff([]string{"a3", "c2"}, q.granted()); diff != "" {
		t.Errorf("granted (-want +have):\n%s", diff)
	}

	q.waiters["a3"].leaveQueue()
	q.done("c2")

	for _, name := range []string{"d1", "d2", "d3"} {
		q.waiters[name] = q.requestSlot("d", false)
	}

	delete(q.waiters, "a3")
	if diff := cmp.Diff([]string{"d1", "d2"}, q.granted()); diff != "" {
		t.Errorf("granted, of two slots (-want +have):\n%s", diff)
	}
}

// Under load, each request is granted, and there are never more grants than slots. In a bubble, the
// clock moves only when each goroutine waits, so a slot that is lost shows immediately.
func TestFairQueueConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slots, origins, requests = 3, 20, 200
		var (
			queue        = newFairQueue(slots)
			group        sync.WaitGroup
			inside, came atomic.Int64
		)
		for o := range origins {
			group.Go(func() {
				for i := range requests {
					w := queue.requestSlot(strconv.Itoa(o%7), i%3 == 0)
					if i%5 == 0 {
						w.leaveQueue() // Granted or not.
						continue
					}

					select {
					case <-w.granted:
					case <-time.After(time.Hour):
						t.Errorf("request %d of origin %d waits while all others do: a slot was lost", i, o%7)
						return
					}

					if n := inside.Add(1); n > slots {
						t.Errorf("%d grants, want at most %d", n, slots)
					}

					time.Sleep(time.Millisecond) // So that others wait, and some of them give up.
					came.Add(1)
					inside.Add(-1)
					w.leaveQueue()
				}
			})
		}

		group.Wait()

		if want := int64(origins * requests * 4 / 5); came.Load() != want {
			t.Errorf("%d grants, want %d", came.Load(), want)
		}
		if queue.free != slots {
			t.Errorf("%d slots are free at the end, want all %d", queue.free, slots)
		}
	})
}
