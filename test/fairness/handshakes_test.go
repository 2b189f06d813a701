package fairness

import (
	"slices"
	"testing"
	"time"
)

// knocking besieges a listener with 512 handshakes at once, which lets so many of them compute, 0 is its default.
func knocking(t testing.TB, handshakes, rounds int, round time.Duration) siege {
	t.Helper()

	w := newWorld(t, listenerSettings{Handshakes: handshakes})
	newcomer := newIdentity(w.ca, "newcomer")

	w.quiet.run(t, 2*quietEvery) // Everyone is connected.

	return besiege(t, knockerSettings{Addr: w.addr, Connections: 512}, rounds, round,
		func(round time.Duration) arrivals { return w.during(t, newcomer, round) })
}

// newcomerEvery keeps the newcomer within the share of a runtime, however fast the machine is.
const newcomerEvery = 10 * time.Millisecond

// during runs the quiet runtimes for a while, and one more that connects anew for each event.
func (w *world) during(t testing.TB, newcomer *identity, round time.Duration) arrivals {
	t.Helper()

	a := arrivals{fresh: measured{refused: make(map[int]int)}}
	quiet := make(chan measured)

	go func() { quiet <- w.quiet.run(t, round) }()

	pace := time.NewTicker(newcomerEvery)
	defer pace.Stop()

	for began := time.Now(); time.Since(began) < round; <-pace.C {
		s := must(newSender(newcomer, w.addr))
		at := time.Now()

		if status, _, err := s.send(t.Context()); err == nil && status < 300 {
			a.fresh.took = append(a.fresh.took, time.Since(at))
		} else {
			a.fresh.refused[status]++
		}

		s.close()
	}

	a.quiet = <-quiet
	slices.Sort(a.fresh.took)

	return a
}

// BenchmarkKnocking is what handshakes that strangers begin cost those who are connected, and those who connect.
func BenchmarkKnocking(b *testing.B) { benchmarkBound(b, knocking) }

// Handshakes that strangers begin delay those who are connected, and those who connect from elsewhere, far less than they would without
// bound. Both are measured with the same flood, as times say little on a busy machine.
func TestKnockingDelaysOthersLess(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds, which -short leaves out")
	}

	besieged := knocking(t, 0, 1, 2*time.Second)
	bound, free := besieged.knockedAt, knocking(t, unbounded, 1, 2*time.Second).knockedAt

	if flood := besieged.flood; flood.Answered == 0 || len(bound.fresh.took) == 0 || sum(bound.quiet.refused)+sum(bound.fresh.refused) > 0 {
		t.Errorf("flood %+v, %d connected anew, refused were %v and %v: want a flood, and none refused",
			flood, len(bound.fresh.took), bound.quiet.refused, bound.fresh.refused)
	}

	if with, without := bound.quiet.p(50), free.quiet.p(50); 2*with > without {
		t.Errorf("half of the events took more than %v with the bound and %v without it, want less than half as long", with, without)
	}
}
