package crowd_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// hall is a crowd whose members have names, which begin with their origin.
type hall struct {
	*crowd.Crowd

	members map[string]*crowd.Member
	left    []string
}

func newHall(limit int, names ...string) *hall {
	h := &hall{Crowd: crowd.New(limit), members: make(map[string]*crowd.Member)}
	for _, name := range names {
		h.enter(name)
	}

	return h
}

func (h *hall) enter(name string) bool {
	member := h.Enter(name[:1], func() { h.left = append(h.left, name) })
	h.members[name] = member

	return member != nil
}

func (h *hall) busy(names ...string) {
	for _, name := range names {
		h.members[name].SetBusy(true)
	}
}

func TestWhoHasToLeave(t *testing.T) {
	tests := []struct {
		name     string
		inside   string
		busy     string
		newcomer string
		enters   bool
		left     string
	}{
		{"nobody, as long as there is room", "a1 a2", "", "a3", true, ""},
		{"who has waited longest, of the largest origin", "b1 a1 a2 a3", "", "b2", true, "a1"},
		{"one who waits before one who is busy", "a1 a2 a3 b1", "a1", "b2", true, "a2"},
		{"who became busy first, if all are", "a1 a2 a3 b1", "a2 a1 a3", "b2", true, "a2"},
		{"of its own origin, where that is the largest", "a1 b1 a2 a3", "", "a4", true, "a1"},
		{"of its own origin, where that is among the largest", "b1 b2 a1 a2", "", "a3", true, "a1"},
		{"nobody, for one of the largest origin that is all busy", "a1 a2 a3 b1", "a1 a2 a3", "a4", false, ""},
		{"a stranger's crowd, for the first from elsewhere", "a1 a2 a3 a4", "a1 a2 a3 a4", "b1", true, "a1"},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHall(4, strings.Fields(test.inside)...)
			h.busy(strings.Fields(test.busy)...)

			if enters := h.enter(test.newcomer); enters != test.enters {
				t.Errorf("newcomer enters: %v, want %v", enters, test.enters)
			}

			if left := strings.Join(h.left, " "); left != test.left {
				t.Errorf("%q had to leave, want %q", left, test.left)
			}
		})
	}
}

func TestWorkMakesYoung(t *testing.T) {
	h := newHall(3, "a1", "a2", "a3")
	h.busy("a1")
	h.members["a1"].SetBusy(false)
	h.enter("a4")

	if diff := cmp.Diff([]string{"a2"}, h.left); diff != "" {
		t.Errorf("who had to leave (-want +have):\n%s", diff)
	}
}

func TestMove(t *testing.T) {
	h := newHall(4, "a1", "a2", "a3", "a4")
	// Two of the address are known by name now, and the same name.
	h.members["a3"].Move("c")
	h.members["a4"].Move("c")
	h.enter("d1")
	h.enter("c5")

	if diff := cmp.Diff([]string{"a1", "a3"}, h.left); diff != "" {
		t.Errorf("who had to leave (-want +have):\n%s", diff)
	}
}

func TestWhoHasLeftIsForgotten(t *testing.T) {
	h := newHall(2, "a1", "a2")
	gone := h.members["a1"]

	for range 2 {
		gone.Leave()
		gone.SetBusy(true)
		gone.Move("z")
	}

	if h.Size() != 1 {
		t.Errorf("%d members, want 1", h.Size())
	}

	h.enter("a3")
	h.enter("a4") // displaces a2
	h.members["a2"].Leave()

	if h.Size() != 2 || !slices.Equal(h.left, []string{"a2"}) {
		t.Errorf("%d members, and %v had to leave, want 2 and a2", h.Size(), h.left)
	}
}

// Whatever happens, the bound holds, and only an origin that has more places than the newcomer's loses one to it, or that one itself.
func TestFairness(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := 1 + r.IntN(12)
		m := &model{Crowd: crowd.New(limit), t: t, limit: limit, inside: make(map[*guest]bool)}

		for range 200 {
			guests := slices.Collect(maps.Keys(m.inside))

			switch step, from := r.IntN(8), strconv.Itoa(r.IntN(5)); {
			case len(guests) > 0 && step < 4:
				m.change(guests[r.IntN(len(guests))], step, from)
			default:
				m.enter(from)
			}

			if m.Size() != len(m.inside) || m.Size() > limit {
				t.Fatalf("seed %d: %d members, want %d, and at most %d", seed, m.Size(), len(m.inside), limit)
			}
		}
	}
}

// model is a crowd, and what must be true of it.
type model struct {
	*crowd.Crowd

	t      *testing.T
	limit  int
	inside map[*guest]bool

	// What there was when the newcomer came.
	newcomer    string
	full        bool
	sizes, idle map[string]int
}

type guest struct {
	*crowd.Member

	from string
	busy bool
}

func (m *model) change(g *guest, step int, from string) {
	switch step {
	case 0:
		g.Leave()
		delete(m.inside, g)
	case 1:
		g.from = from
		g.Move(from)
	default:
		g.busy = step == 2
		g.SetBusy(g.busy)
	}
}

func (m *model) enter(from string) {
	m.newcomer, m.full = from, len(m.inside) == m.limit
	m.sizes, m.idle = make(map[string]int), make(map[string]int)

	for g := range m.inside {
		m.sizes[g.from]++

		if !g.busy {
			m.idle[g.from]++
		}
	}

	g := &guest{from: from}
	g.Member = m.Enter(from, func() { m.leave(g) })

	switch {
	case g.Member != nil:
		m.inside[g] = true
	case !m.full, m.idle[from] > 0, m.sizes[from] < m.most():
		m.t.Fatalf("origin %s is not let in, of %v with %d places; %v wait", from, m.sizes, m.limit, m.idle)
	}
}

func (m *model) most() int { return slices.Max(slices.Collect(maps.Values(m.sizes))) }

func (m *model) leave(g *guest) {
	if !m.full || !m.inside[g] || m.sizes[g.from] < m.most() {
		m.t.Fatalf("one of origin %s has to leave, of %v with %d places", g.from, m.sizes, m.limit)
	}

	if g.busy && (g.from == m.newcomer || m.idle[g.from] > 0) {
		m.t.Fatalf("one of origin %s has to leave who is busy, for one of %s; %v wait", g.from, m.newcomer, m.idle)
	}

	delete(m.inside, g)
}

func TestConcurrentUse(t *testing.T) {
	const limit = 8

	c := crowd.New(limit)

	var all sync.WaitGroup

	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				m := c.Enter(strconv.Itoa((i+j)%3), func() {})
				if m == nil {
					continue
				}

				m.SetBusy(j%2 == 0)
				m.Move(strconv.Itoa(j % 5))

				if n := c.Size(); n > limit {
					t.Errorf("%d members, want at most %d", n, limit)
				}

				m.Leave()
			}
		})
	}

	all.Wait()

	if c.Size() != 0 {
		t.Errorf("%d members are left, want none", c.Size())
	}
}
