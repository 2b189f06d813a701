package crowd_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// queue is turns whose owners have names, which begin with their origin. Those with an exclamation mark go on with what they began.
type queue struct {
	*crowd.Turns

	turns map[string]*crowd.Turn
}

func newQueue(places int, names string) *queue {
	q := &queue{Turns: crowd.NewTurns(places), turns: make(map[string]*crowd.Turn)}
	for name := range strings.FieldsSeq(names) {
		q.turns[name] = q.Ask(name[:1], strings.HasSuffix(name, "!"))
	}

	return q
}

// working returns whose turn it is, by name.
func (q *queue) working() (names []string) {
	for name, turn := range q.turns {
		select {
		case <-turn.Granted():
			names = append(names, name)
		default:
		}
	}

	slices.Sort(names)

	return names
}

func (q *queue) done(name string) {
	q.turns[name].Done()
	delete(q.turns, name)
}

// order ends one turn after the other and returns the order in which they came.
func (q *queue) order() string {
	var names []string

	for working := q.working(); len(working) > 0; working = q.working() {
		names = append(names, working[0])
		q.done(working[0])
	}

	return strings.Join(names, " ")
}

func TestWhoseTurnItIs(t *testing.T) {
	tests := []struct{ name, ask, order string }{
		{"one origin", "a1 a2 a3", "a1 a2 a3"},
		{"origins by turns", "a1 a2 a3 a4 b1 b2 c1", "a1 a2 b1 c1 a3 b2 a4"},
		{"what was begun before what begins", "a1 a2 a3 a4! a5!", "a1 a4! a5! a2 a3"},
		{"what was begun before no other origin", "a1 b1 b2 a2! a3!", "a1 b1 a2! b2 a3!"},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.order, newQueue(1, test.ask).order()); diff != "" {
				t.Errorf("order (-want +have):\n%s", diff)
			}
		})
	}
}

func TestWhoGivesUpTakesNoTurn(t *testing.T) {
	q := newQueue(2, "a1 b1 a2 a3 c1")
	q.turns["a2"].Done()
	q.turns["a2"].Done()
	q.done("c1")
	q.done("a1")
	q.done("b1")

	if diff := cmp.Diff([]string{"a3"}, q.working()); diff != "" {
		t.Errorf("at work (-want +have):\n%s", diff)
	}

	for range 2 {
		q.turns["a3"].Done()
	}

	for _, name := range []string{"d1", "d2", "d3"} {
		q.turns[name] = q.Ask("d", false)
	}

	delete(q.turns, "a3")

	if diff := cmp.Diff([]string{"d1", "d2"}, q.working()); diff != "" {
		t.Errorf("at work, of two places (-want +have):\n%s", diff)
	}
}

// Nobody is forgotten, and there are never more at work than there are places.
func TestTurnsUnderLoad(t *testing.T) {
	const places, origins, turns = 3, 20, 200

	var (
		queue        = crowd.NewTurns(places)
		group        sync.WaitGroup
		inside, came atomic.Int64
	)

	for o := range origins {
		group.Go(func() {
			for i := range turns {
				turn := queue.Ask(strconv.Itoa(o%7), i%3 == 0)

				if i%5 == 0 {
					turn.Done() // Whether it has come or not.

					continue
				}

				<-turn.Granted()

				if n := inside.Add(1); n > places {
					t.Errorf("%d at work, want at most %d", n, places)
				}

				came.Add(1)
				inside.Add(-1)
				turn.Done()
			}
		})
	}

	group.Wait()

	if want := int64(origins * turns * 4 / 5); came.Load() != want {
		t.Errorf("%d turns came, want %d", came.Load(), want)
	}
}
