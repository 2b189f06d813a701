package crowd

import (
	"container/list"
	"runtime"
	"sync"
)

// Turns bounds how many are at work at once, and who waits comes in by turns of the origins, whatever number waits of each. So who
// asks for much waits behind its own, while nobody's turn is withheld as long as a place is free. Of one origin, those who go on with what they
// have begun come before those who begin: else all would be begun, and nothing be done in time.
//
// It is safe for concurrent use, starts no goroutine, and takes the same time for any number of those who wait.
type Turns struct {
	mu      sync.Mutex
	free    int
	origins map[string]*line
	next    *list.List // of *line, all that somebody waits in, in the order of their turns
}

// line is who waits of one origin.
type line struct {
	from         string
	place        *list.Element // in Turns.next
	begun, fresh *list.List    // of *Turn
}

// Turn is what somebody has asked for.
type Turn struct {
	turns   *Turns
	granted chan struct{}

	// Guarded by turns.mu.
	state turnState
	line  *line
	in    *list.List
	place *list.Element
}

type turnState int

const (
	waiting turnState = iota
	working
	done
)

// DefaultPlaces leaves half of the processors to those who need no turn any more.
func DefaultPlaces() int { return max(runtime.GOMAXPROCS(0)/2, 1) } //nolint:mnd // A half.

// NewTurns returns places for so many to be at work at once, which must be above 0.
func NewTurns(places int) *Turns {
	return &Turns{free: places, origins: make(map[string]*line), next: list.New()}
}

// Ask asks for a turn, without waiting for it, and says whether it goes on with what was begun in an earlier one. Whoever asks calls
// Done in any case.
func (t *Turns) Ask(from string, begun bool) *Turn {
	t.mu.Lock()
	defer t.mu.Unlock()

	turn := &Turn{turns: t, granted: make(chan struct{})}

	// Nobody waits while a place is free.
	if t.free > 0 {
		t.free--
		turn.grant()

		return turn
	}

	turn.enlist(t.lineOf(from), begun)

	return turn
}

// Granted is closed when the turn has come.
func (turn *Turn) Granted() <-chan struct{} { return turn.granted }

// Done ends the turn, or the wait for it. All calls but the first do nothing.
func (turn *Turn) Done() {
	t := turn.turns

	t.mu.Lock()
	defer t.mu.Unlock()

	switch turn.state {
	case waiting:
		turn.unlist()
	case working:
		t.pass()
	case done:
	}

	turn.state = done
}

// pass gives a place that was left to who is next.
func (t *Turns) pass() {
	first := t.next.Front()
	if first == nil {
		t.free++

		return
	}

	l, _ := first.Value.(*line)
	turn := l.first()

	t.next.MoveToBack(first)
	turn.unlist()
	turn.grant()
}

func (turn *Turn) grant() {
	turn.state = working
	close(turn.granted)
}

func (turn *Turn) enlist(l *line, begun bool) {
	turn.line, turn.in = l, l.fresh
	if begun {
		turn.in = l.begun
	}

	turn.place = turn.in.PushBack(turn)
}

// unlist forgets the line with its last turn.
func (turn *Turn) unlist() {
	l, t := turn.line, turn.turns
	turn.in.Remove(turn.place)

	if l.begun.Len() == 0 && l.fresh.Len() == 0 {
		t.next.Remove(l.place)
		delete(t.origins, l.from)
	}
}

// lineOf returns the line of an origin. A new one has the last turn.
func (t *Turns) lineOf(from string) *line {
	l := t.origins[from]
	if l == nil {
		l = &line{from: from, begun: list.New(), fresh: list.New()}
		l.place = t.next.PushBack(l)
		t.origins[from] = l
	}

	return l
}

func (l *line) first() *Turn {
	e := l.begun.Front()
	if e == nil {
		e = l.fresh.Front()
	}

	turn, _ := e.Value.(*Turn)

	return turn
}
