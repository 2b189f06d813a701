package fairness

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// arrivals is what those went through who were there, and those who came anew.
type arrivals struct {
	quiet, fresh measured
}

// knocking has several rounds without and with somebody who begins 512 handshakes at once, again and again.
func knocking(t testing.TB, handshakes, rounds int, round time.Duration) (calm, knockedAt arrivals, flood knocked) {
	t.Helper()

	w := newWorld(t, listenerSettings{Handshakes: handshakes})
	newcomer := newIdentity(w.ca, "newcomer")
	knocker := spawn(t, "knocker", knockerSettings{Addr: w.addr, Connections: 512})

	w.quiet.run(t, 2*quietEvery) // Everyone is connected.

	for range rounds {
		calm.add(w.during(t, newcomer, round))

		ended := make(chan knocked)

		go func() {
			var came knocked
			if err := errors.Join(knocker.Encode(round), knocker.Decode(&came)); err != nil {
				t.Error(err)
			}

			ended <- came
		}()

		knockedAt.add(w.during(t, newcomer, round))

		came := <-ended
		flood.Seconds += came.Seconds
		flood.Answered += came.Answered
		flood.Failed += came.Failed
	}

	t.Logf("%d handshakes at once (0: default): without, quiet p50 %v p99 %v, new p50 %v; with, quiet p50 %v p99 %v (%d, %v refused), new p50 %v max %v (%d, %v refused); flood %+v",
		handshakes, calm.quiet.p(50), calm.quiet.p(99), calm.fresh.p(50),
		knockedAt.quiet.p(50), knockedAt.quiet.p(99), len(knockedAt.quiet.took), knockedAt.quiet.refused,
		knockedAt.fresh.p(50), knockedAt.fresh.p(100), len(knockedAt.fresh.took), knockedAt.fresh.refused, flood)

	return calm, knockedAt, flood
}

func (a *arrivals) add(other arrivals) {
	a.quiet.add(other.quiet)
	a.fresh.add(other.fresh)
}

// during lets the quiet ones send for a while, and one come anew again and again.
func (w *world) during(t testing.TB, newcomer *identity, round time.Duration) arrivals {
	t.Helper()

	a := arrivals{fresh: measured{refused: make(map[int]int)}}
	quiet := make(chan measured)

	go func() { quiet <- w.quiet.run(t, round) }()

	for began := time.Now(); time.Since(began) < round; {
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
func BenchmarkKnocking(b *testing.B) {
	for name, handshakes := range map[string]int{"bound": 0, "no-bound": 1e6} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				calm, flooded, flood := knocking(b, handshakes, 3, 2*time.Second)
				b.ReportMetric(float64(calm.quiet.p(50).Microseconds())/1e3, "quiet-p50-calm-ms")
				b.ReportMetric(float64(flooded.quiet.p(50).Microseconds())/1e3, "quiet-p50-ms")
				b.ReportMetric(float64(flooded.quiet.p(99).Microseconds())/1e3, "quiet-p99-ms")
				b.ReportMetric(float64(calm.fresh.p(50).Microseconds())/1e3, "new-p50-calm-ms")
				b.ReportMetric(float64(flooded.fresh.p(50).Microseconds())/1e3, "new-p50-ms")
				b.ReportMetric(float64(flood.Answered)/flood.Seconds, "handshakes/s")
			}
		})
	}
}

// Handshakes that strangers begin delay those who are connected, and those who connect from elsewhere, far less than they would without
// bound. Both are measured with the same flood, as times say little on a busy machine.
func TestKnockingDelaysOthersLess(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds, which -short leaves out")
	}

	_, bound, flood := knocking(t, 0, 1, 2*time.Second)
	_, free, _ := knocking(t, 1e6, 1, 2*time.Second)

	if flood.Answered == 0 || len(bound.fresh.took) == 0 || sum(bound.quiet.refused)+sum(bound.fresh.refused) > 0 {
		t.Errorf("flood %+v, %d connected anew, refused were %v and %v: want a flood, and none refused",
			flood, len(bound.fresh.took), bound.quiet.refused, bound.fresh.refused)
	}

	if with, without := bound.quiet.p(50), free.quiet.p(50); 2*with > without {
		t.Errorf("half of the events took more than %v with the bound and %v without it, want less than half as long", with, without)
	}
}
