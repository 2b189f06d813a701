package fairness

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// result is what the quiet ones went through without and with the flood, in turns, and what the flood came to.
type result struct {
	calm, flooded measured
	flood         flooded
}

// The flood: as many requests at once as fill every slot of a listener twice, on many connections.
const (
	connections = 32
	streams     = 16
)

// measure has several rounds without and with the flood.
func measure(t testing.TB, unfair bool, rounds int, round time.Duration) (r result) {
	t.Helper()

	w := newWorld(t, listenerSettings{Unfair: unfair})
	flooder := spawn(t, "flooder", flooderSettings{
		Identity: *newIdentity(w.ca, string(loud)), Addr: w.addr, Connections: connections, Streams: streams,
	})

	w.quiet.run(t, 2*quietEvery) // Everyone is connected.
	flooder.order(t, time.Millisecond)

	for range rounds {
		r.calm.add(w.quiet.run(t, round))

		ended := make(chan flooded)

		go func() { ended <- flooder.order(t, round) }()

		r.flooded.add(w.quiet.run(t, round))
		r.flood.add(<-ended)
	}

	t.Logf("share %v: quiet %d events without the flood, p50 %v p99 %v; %d with it, p50 %v p99 %v, refused %v; flood %+v",
		!unfair, len(r.calm.took), r.calm.p(50), r.calm.p(99), len(r.flooded.took), r.flooded.p(50), r.flooded.p(99), r.flooded.refused, r.flood)

	return r
}

// order lets the flooding runtime flood for a while.
func (p *process) order(t testing.TB, round time.Duration) (came flooded) {
	t.Helper()

	if err := errors.Join(p.Encode(round), p.Decode(&came)); err != nil {
		t.Error(err)
	}

	return came
}

func (f *flooded) add(other flooded) {
	f.Seconds += other.Seconds
	f.Sent += other.Sent
	f.Taken += other.Taken
	f.TooFast += other.TooFast
	f.Refused += other.Refused
	f.Failed += other.Failed
}

// world is a listener in a process of its own, and the quiet runtimes that send to it.
type world struct {
	ca    *testpki.CA
	addr  string
	quiet quiet
}

// newWorld starts a listener with those settings, and key material of its own.
func newWorld(t testing.TB, settings listenerSettings) *world {
	t.Helper()

	w := &world{ca: must(testpki.NewCA("fairness", testpki.Options{}))}
	server := must(w.ca.Server("listener", testpki.Options{}))
	settings.CA, settings.Cert, settings.Key = w.ca.PEM(), server.CertPEM(), must(server.KeyPEM())
	spawn(t, "listener", settings).receive(&w.addr)

	for n := range quietRuntimes {
		w.quiet.senders = append(w.quiet.senders, mustSender(t, newIdentity(w.ca, fmt.Sprintf("quiet-%d", n)), w.addr))
	}

	return w
}

func newIdentity(ca *testpki.CA, name string) *identity {
	leaf := must(ca.Client(name, testpki.Options{}))

	return &identity{Name: name, CA: ca.PEM(), Cert: leaf.CertPEM(), Key: must(leaf.KeyPEM())}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}

	return value
}

// One loud runtime is told to wait, and the quiet ones do not notice. Times are only held to what a busy machine can keep: see
// BenchmarkQuiet for them.
func TestOneLoudRuntimeDoesNotStarveTheOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds, which -short leaves out")
	}

	r := measure(t, false, 2, time.Second)

	if len(r.flooded.took) == 0 || len(r.flooded.refused) > 0 {
		t.Errorf("%d events of quiet runtimes were taken and %v refused while another floods, want none refused", len(r.flooded.took), r.flooded.refused)
	}

	if r.flood.TooFast == 0 || r.flood.Refused > 0 {
		t.Errorf("the flood was answered %+v, want what is too much answered 429 with Retry-After", r.flood)
	}

	if before, after := r.calm.p(50), r.flooded.p(50); after > 5*before+500*time.Millisecond {
		t.Errorf("half of the quiet events took more than %v during the flood, and %v without", after, before)
	}
}

// Without its share, the same flood takes every slot: else the test above would prove nothing.
func TestWithoutSharesItWouldStarveThem(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds, which -short leaves out")
	}

	r := measure(t, true, 1, 2*time.Second)
	if r.flooded.refused[http.StatusServiceUnavailable] == 0 || r.flood.TooFast > 0 {
		t.Errorf("quiet ones were refused %v, the flood was answered %+v: want 503 for the quiet, and no 429", r.flooded.refused, r.flood)
	}
}

// BenchmarkQuiet is how much a flood moves the p99 of quiet runtimes: in turns without and with it, three rounds of 10 s each.
func BenchmarkQuiet(b *testing.B) {
	for _, unfair := range []bool{false, true} {
		b.Run(fmt.Sprintf("share=%v", !unfair), func(b *testing.B) {
			for b.Loop() {
				r := measure(b, unfair, 3, 10*time.Second)
				calm, flooded := r.calm.p(99), r.flooded.p(99)

				b.ReportMetric(float64(calm.Microseconds())/1e3, "p99-calm-ms")
				b.ReportMetric(float64(flooded.Microseconds())/1e3, "p99-flooded-ms")
				b.ReportMetric(float64(flooded)/float64(calm), "ratio")
				b.ReportMetric(float64(r.flood.Sent)/r.flood.Seconds, "flood/s")
				b.ReportMetric(float64(sum(r.flooded.refused)), "quiet-refused")
			}
		})
	}
}

func sum(counts map[int]int) (n int) {
	for _, count := range counts {
		n += count
	}

	return n
}
