package polling_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	runtimes = flag.Int("runtimes", 100, "number of runtimes")
	scale    = flag.Int("scale", 240, "waits are shorter by this factor")
	protocol = flag.String("protocol", "", "version of HTTP of the agents, as in httpmtls.Options")
	duration = flag.Duration("duration", 10*time.Minute, "time to measure, before it is scaled")
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"operator": operate}))
}

// clock scales waits, and nothing else.
type clock struct{ scale int }

func (c clock) scaled(wait time.Duration) time.Duration { return wait / time.Duration(c.scale) }

// way is the source of an operator's reconciles: events or polling.
type way struct {
	name     string
	interval time.Duration
	// heartbeat is the interval of the agents. It is 0 without events.
	heartbeat time.Duration
}

func (w way) events() bool { return w.heartbeat > 0 }

// TestEventsAgainstPolling prints the table of docs/maintainers/measurements.md. Each runtime changes once in an
// hour on average. With events the operator also polls fresh runtimes, every 30 min by default.
func TestEventsAgainstPolling(t *testing.T) {
	polls := []way{{"polling every 5 min", 5 * time.Minute, 0}, {"polling every 30 s", 30 * time.Second, 0}}
	t.Logf("%d runtimes, waits scaled by %d, %v measured", *runtimes, *scale, *duration)
	events := run(t, way{"events", 30 * time.Minute, outbox.Defaults().HeartbeatInterval})
	t.Log(events)
	t.Log(run(t, way{"events, heartbeats every 5 min", 30 * time.Minute, 5 * time.Minute}))
	for _, poll := range polls {
		r := run(t, poll)
		t.Log(r)
		if soon, late := events.delays.At(99), r.delays.At(50); soon >= late {
			t.Errorf("%s: p50 is %v, want more than the p99 with events, %v", poll.name, late, soon)
		}
		if r.gets <= events.gets {
			t.Errorf("%d requests to API servers, want more than the %d with events", r.gets, events.gets)
		}
	}
}

// result has the cost of one way in an hour, and the delays from the changes to the looks.
type result struct {
	name           string
	gets, requests int64
	processor      time.Duration
	delays         kit.Delays
}

func (r *result) String() string {
	return fmt.Sprintf("%-30s | changes %4d | staleness p50 %v p99 %v | in an hour: %d requests to API servers, "+
		"%d to the operator, %v of processor time", r.name, len(r.delays), r.delays.At(50),
		r.delays.At(99), r.gets, r.requests, r.processor.Round(10*time.Millisecond))
}

// run measures one way.
func run(t *testing.T, w way) (r *result) {
	t.Helper()
	t.Run(w.name, func(t *testing.T) {
		pki := lab.NewPKI(t)
		servers := startAPIServers(t, pki.CA, *runtimes)
		leaf := lab.Must(pki.CA.Server("operator", testpki.Options{Usages: lab.BothUsages()}))
		operator := kit.Start(t, "operator", settings{
			Keys: kit.Paths(pki.Volume(leaf)), Server: servers.Listener.Addr().String(), Runtimes: *runtimes,
			Interval: clock{*scale}.scaled(w.interval), Events: w.events(),
		})
		address, changed := operator.Line(), func(int, int64) {}
		if w.events() {
			changed = startAgents(t, pki, address, clock{*scale}, w.heartbeat)
		}
		r = measure(t, w, servers, operator, changed)
	})
	return r
}

// measure measures after each runtime was looked at, and the first resync was sent again.
func measure(t *testing.T, w way, servers *apiServers, operator *kit.Process, changed func(int, int64)) *result {
	t.Helper()
	clock := clock{*scale}
	lab.Eventually(t, patience, "the operator has looked at all runtimes", func() bool {
		return servers.all(func(a *apiServer) bool { return a.looks > 0 })
	})
	<-time.After(clock.scaled(2 * outbox.Defaults().ResendResync))
	before, gets := lab.Must(operator.Used()).Processor, servers.gets.Load()
	var requests, after int64
	operator.Ask("", &requests)
	ctx, stop := context.WithTimeout(t.Context(), clock.scaled(*duration))
	defer stop()
	servers.change(ctx, clock, changed)
	operator.Ask("", &after)
	r := &result{
		name: w.name, gets: hourly(servers.gets.Load() - gets), requests: hourly(after - requests),
		processor: hourly(lab.Must(operator.Used()).Processor - before),
	}
	lab.Eventually(t, patience, "the operator has seen all changes", func() bool {
		return servers.all(func(a *apiServer) bool { return len(a.unseen) == 0 })
	})
	r.delays = servers.delays.Take()
	for i := range r.delays {
		r.delays[i] = clock.unscaled(r.delays[i], w)
	}
	return r
}

// hourly returns the value for an hour, from the measured one.
func hourly[T int64 | time.Duration](measured T) T {
	return T(float64(measured) * time.Hour.Seconds() / duration.Seconds())
}

// unscaled returns a delay with the waits of the true time. With events that is the settle time, and
// everything else is work. With polling it is nearly all of the delay.
func (c clock) unscaled(delay time.Duration, w way) time.Duration {
	if w.events() {
		return delay - c.scaled(outbox.Defaults().Settle) + outbox.Defaults().Settle
	}
	return delay * time.Duration(c.scale)
}

// patience bounds each wait for the operator, on a busy machine, too.
const patience = 5 * time.Minute
