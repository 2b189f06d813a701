package fairness

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// arrivals is what those went through who were there, and those who came anew.
type arrivals struct {
	quiet, fresh measured
}

func (a *arrivals) add(other arrivals) {
	a.quiet.add(other.quiet)
	a.fresh.add(other.fresh)
}

func (a *arrivals) String() string {
	return fmt.Sprintf("connected p50 %v p99 %v (%d, %v refused), new p50 %v p90 %v max %v (%d, %v refused)",
		a.quiet.p(50), a.quiet.p(99), len(a.quiet.took), a.quiet.refused,
		a.fresh.p(50), a.fresh.p(90), a.fresh.p(100), len(a.fresh.took), a.fresh.refused)
}

// siege is what comes of rounds without and with somebody who begins handshakes, again and again.
type siege struct {
	calm, knockedAt arrivals
	flood           knocked
}

// besiege has during arrive for several rounds, without and with a knocker.
func besiege(t testing.TB, at knockerSettings, rounds int, round time.Duration, during func(time.Duration) arrivals) (s siege) {
	t.Helper()

	knocker := spawn(t, "knocker", at)

	for range rounds {
		s.calm.add(during(round))

		ended := make(chan knocked)

		go func() {
			var came knocked
			if err := errors.Join(knocker.Encode(round), knocker.Decode(&came)); err != nil {
				t.Error(err)
			}

			ended <- came
		}()

		s.knockedAt.add(during(round))
		s.flood.add(<-ended)
	}

	t.Logf("without: %v; with: %v; flood %+v", &s.calm, &s.knockedAt, s.flood)

	return s
}

// benchmarkBound measures a siege with the bound on handshakes and without it.
func benchmarkBound(b *testing.B, besieged func(t testing.TB, handshakes, rounds int, round time.Duration) siege) {
	b.Helper()

	for name, handshakes := range map[string]int{"bound": 0, "no-bound": unbounded} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := besieged(b, handshakes, 3, 2*time.Second)
				b.ReportMetric(milliseconds(s.calm.quiet.p(50)), "connected-p50-calm-ms")
				b.ReportMetric(milliseconds(s.knockedAt.quiet.p(50)), "connected-p50-ms")
				b.ReportMetric(milliseconds(s.knockedAt.quiet.p(99)), "connected-p99-ms")
				b.ReportMetric(milliseconds(s.calm.fresh.p(50)), "new-p50-calm-ms")
				b.ReportMetric(milliseconds(s.knockedAt.fresh.p(50)), "new-p50-ms")
				b.ReportMetric(float64(s.flood.Answered)/s.flood.Seconds, "handshakes/s")
			}
		})
	}
}

// unbounded is more handshakes at once than anybody begins.
const unbounded = 1e6

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
