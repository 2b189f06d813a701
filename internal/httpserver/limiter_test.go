package httpserver

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// named is a limiter with a name for each slot. The first letter of a name is its origin, and one
// that ends with a question mark has not completed its handshake.
type named struct {
	*limiter

	slots   map[string]*slot
	evicted []string
}

func (l *limiter) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size()
}

func newNamed(limit int, names ...string) *named {
	n := &named{limiter: newLimiter(limit), slots: make(map[string]*slot)}
	for _, name := range names {
		n.open(name)
	}
	return n
}

func (n *named) open(name string) bool {
	n.slots[name], _ = n.acquireSlot(claim{
		origin: name[:1], shakes: strings.HasSuffix(name, "?"), evict: func() { n.evicted = append(n.evicted, name) },
	})
	return n.slots[name] != nil
}

// change makes a slot busy ("a1"), idle ("-a1"), or one of another origin ("a1>c"). It completes
// the handshake of one ("+a1?").
func (n *named) change(text string) {
	if name, settles := strings.CutPrefix(text, "+"); settles {
		n.slots[name].markSettled()
		return
	}

	if name, origin, moved := strings.Cut(text, ">"); moved {
		n.slots[name].moveToOrigin(origin)
		return
	}

	name, idle := strings.CutPrefix(text, "-")
	n.slots[name].setBusy(!idle)
}

// A new connection evicts one of the origin with the most connections, and an idle one first.
func TestEviction(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		slots   string
		changes string
		opens   string // the last of them gets a slot, or not
		gets    bool
		evicted string
	}{
		{"none while there is room", "a1 a2", "", "a3", true, ""},
		{"the oldest idle slot of the largest origin", "b1 a1 a2 a3", "", "b2", true, "a1"},
		{"an idle slot before a busy one", "a1 a2 a3 b1", "a1", "b2", true, "a2"},
		{"the one that is busy for longest, if all are", "a1 a2 a3 b1", "a2 a1 a3", "b2", true, "a2"},
		{"one of its own origin, if that is the largest", "a1 b1 a2 a3", "", "a4", true, "a1"},
		{"one of its own origin, if that is among the largest", "b1 b2 a1 a2", "", "a3", true, "a1"},
		{"none for the largest origin if all of it are busy", "a1 a2 a3 b1", "a1 a2 a3", "a4", false, ""},
		{"a busy one for the first of another origin", "a1 a2 a3 a4", "a1 a2 a3 a4", "b1", true, "a1"},
		{"idle time begins after work", "a1 a2 a3 a4", "a1 -a1", "a5", true, "a2"},
		{"handshakes beyond a quarter before a larger origin", "a1 a2 b? c?", "", "d1", true, "b?"},
		{"handshakes of the largest origin among them", "a1 b? c? c2?", "", "d? e?", true, "c? b?"},
		{"a handshake of its own origin, if that is among the largest", "a1 a2 b? c?", "", "c3?", true, "c?"},
		{"the oldest idle slot beside a quarter of handshakes", "a1 a2 a3 b?", "", "c?", true, "a1"},
		{"handshakes that are complete count as all others", "a1 b1? c1? d1?", "+b1? +c1? +d1?", "b2", true, "b1?"},
		{"a handshake, if there is nothing else", "a? b? c? d?", "", "e1", true, "a?"},
		{"slots that have moved", "a1 a2 a3 a4", "a3>c a4>c", "d1 c5", true, "a1 a3"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			n := newNamed(4, strings.Fields(test.slots)...)
			gets := false
			for text := range strings.FieldsSeq(test.changes) {
				n.change(text)
			}

			for name := range strings.FieldsSeq(test.opens) {
				gets = n.open(name)
			}

			if gets != test.gets {
				t.Errorf("new connection gets a slot: %v, want %v", gets, test.gets)
			}
			if evicted := strings.Join(n.evicted, " "); evicted != test.evicted {
				t.Errorf("evicted %q, want %q", evicted, test.evicted)
			}
		})
	}
}

func TestReleasedSlotDoesNotComeBack(t *testing.T) {
	t.Parallel()

	n := newNamed(2, "a1", "a2")
	released := n.slots["a1"]

	for range 2 {
		released.release()
		released.setBusy(true)
		released.moveToOrigin("z")
	}

	if n.len() != 1 {
		t.Errorf("%d slots in use, want 1", n.len())
	}

	n.open("a3")
	n.open("a4") // evicts a2
	n.slots["a2"].release()

	if n.len() != 2 || !slices.Equal(n.evicted, []string{"a2"}) {
		t.Errorf("%d slots in use, evicted %v, want 2 and a2", n.len(), n.evicted)
	}
}

// In any sequence of calls, the bound holds, and only an origin with the most slots loses one. No
// number of handshakes takes more than a quarter from the others.
func TestLimiterProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := 1 + r.IntN(12)
		m := &model{limiter: newLimiter(limit), t: t, limit: limit, open: make(map[*modelled]bool)}

		for range 200 {
			open := slices.Collect(maps.Keys(m.open))
			switch step, origin := r.IntN(10), strconv.Itoa(r.IntN(5)); {
			case len(open) > 0 && step < 5:
				m.change(open[r.IntN(len(open))], step, origin)
			default:
				m.acquireOne(claim{origin: origin, shakes: step%2 == 0})
			}

			if m.len() != len(m.open) || m.len() > limit {
				t.Fatalf("seed %d: %d slots in use, want %d, and at most %d", seed, m.len(), len(m.open), limit)
			}
		}
	}
}

// model is a limiter with the state that it must have.
type model struct {
	*limiter

	t     *testing.T
	limit int
	open  map[*modelled]bool

	// The state before the newest call of acquireSlot. sizes and idle are those of the slots of which
	// one may be evicted, by origin.
	origin      string
	full        bool
	fromShaking bool
	sizes, idle map[string]int
}

type modelled struct {
	*slot

	origin string
	busy   bool
	shakes bool
}

func (m *model) change(s *modelled, step int, origin string) {
	switch step {
	case 0:
		s.release()
		delete(m.open, s)
	case 1:
		s.origin = origin
		s.moveToOrigin(origin)
	case 2:
		s.shakes = false
		s.markSettled()
	default:
		s.busy = step == 3
		s.setBusy(s.busy)
	}
}

func (m *model) acquireOne(c claim) {
	m.origin = c.origin
	m.full = len(m.open) == m.limit
	shaking := 0
	for s := range m.open {
		if s.shakes {
			shaking++
		}
	}

	m.fromShaking = shaking > max(m.limit/4, 1) || shaking == len(m.open)

	m.sizes = make(map[string]int)
	m.idle = make(map[string]int)
	for s := range m.open {
		if s.shakes != m.fromShaking {
			continue
		}

		m.sizes[s.origin]++
		if !s.busy {
			m.idle[s.origin]++
		}
	}

	s := &modelled{origin: c.origin, shakes: c.shakes}
	c.evict = func() { m.checkEvicted(s) }
	s.slot, _ = m.acquireSlot(c)

	switch {
	case s.slot != nil:
		m.open[s] = true
	case !m.full, m.idle[m.origin] > 0, m.sizes[m.origin] < m.most():
		m.t.Fatalf("origin %s gets no slot, of %v with limit %d; idle %v", m.origin, m.sizes, m.limit, m.idle)
	}
}

func (m *model) most() int { return slices.Max(slices.Collect(maps.Values(m.sizes))) }

func (m *model) checkEvicted(s *modelled) {
	if !m.full || !m.open[s] || s.shakes != m.fromShaking || m.sizes[s.origin] < m.most() {
		m.t.Fatalf("a slot of origin %s is evicted, of %v with limit %d", s.origin, m.sizes, m.limit)
	}
	if s.busy && (s.origin == m.origin || m.idle[s.origin] > 0) {
		m.t.Fatalf("a busy slot of origin %s is evicted for origin %s; idle %v", s.origin, m.origin, m.idle)
	}

	delete(m.open, s)
}

// Concurrent calls leave no slot behind.
func TestLimiterConcurrently(t *testing.T) {
	t.Parallel()

	const limit = 8
	l := newLimiter(limit)
	var all sync.WaitGroup

	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				s, _ := l.acquireSlot(claim{origin: strconv.Itoa((i + j) % 3), shakes: j%3 == 0, evict: func() {}})
				if s == nil {
					continue
				}

				s.setBusy(j%2 == 0)
				s.moveToOrigin(strconv.Itoa(j % 5))
				s.markSettled()

				if n := l.len(); n > limit {
					t.Errorf("%d slots in use, want at most %d", n, limit)
				}

				s.release()
			}
		})
	}

	all.Wait()
	if l.len() != 0 {
		t.Errorf("%d slots in use, want none", l.len())
	}
}
