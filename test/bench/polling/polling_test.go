package polling_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	runtimes = flag.Int("runtimes", 100, "number of runtimes")
	scale    = flag.Int("scale", 240, "waits are shorter by this factor")
	protocol = flag.String("protocol", "", "version of HTTP of the agents, as in httpmtls.Options")
	duration = flag.Duration("duration", 10*time.Minute, "time to measure, before it is scaled")
)

// operatorSettings is the variable of the environment that makes this program an operator.
const operatorSettings = "POLLING_OPERATOR"

func TestMain(m *testing.M) {
	text, operator := os.LookupEnv(operatorSettings)
	if !operator {
		os.Exit(m.Run())
	}
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	if err := s.serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// clock scales waits, and nothing else.
type clock struct{ scale int }

func (c clock) scaled(wait time.Duration) time.Duration { return wait / time.Duration(c.scale) }

// way is the source of an operator's reconciles: events or polling.
type way struct {
	name     string
	interval time.Duration
	events   bool
}

// TestEventsAgainstPolling prints the table of docs/maintainers/measurements.md. Each runtime changes once in an
// hour on average. With events the operator also polls fresh runtimes, every 30 min by default.
func TestEventsAgainstPolling(t *testing.T) {
	polls := []way{{"polling every 5 min", 5 * time.Minute, false}, {"polling every 30 s", 30 * time.Second, false}}
	t.Logf("%d runtimes, waits scaled by %d, %v measured", *runtimes, *scale, *duration)
	events := run(t, way{"events", 30 * time.Minute, true})
	t.Log(events)
	for _, poll := range polls {
		r := run(t, poll)
		t.Log(r)
		if soon, late := events.percentile(99), r.percentile(50); soon >= late {
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
	delays         []time.Duration
}

func (r *result) percentile(p int) time.Duration {
	return r.delays[len(r.delays)*p/100]
}

func (r *result) String() string {
	return fmt.Sprintf("%-20s | changes %4d | staleness p50 %v p99 %v | in an hour: %d requests to API servers, "+
		"%d to the operator, %v of processor time", r.name, len(r.delays), r.percentile(50).Round(time.Millisecond),
		r.percentile(99).Round(time.Millisecond), r.gets, r.requests, r.processor.Round(10*time.Millisecond))
}

// run measures one way.
func run(t *testing.T, w way) (r *result) {
	t.Helper()
	t.Run(w.name, func(t *testing.T) {
		ca := must(testpki.NewCA("ca", testpki.Options{}))
		servers := startAPIServers(t, ca, *runtimes)
		p, address := startOperator(t, settings{
			Keys: writeKeys(t, ca), Server: servers.Listener.Addr().String(), Runtimes: *runtimes,
			Interval: clock{*scale}.scaled(w.interval), Events: w.events,
		})
		changed := func(int, int64) {}
		if w.events {
			changed = startAgents(t, ca, address, clock{*scale}, *runtimes)
		}
		r = measure(t, w, servers, p, changed)
	})
	return r
}

// measure measures after each runtime was looked at, and the first resync was sent again.
func measure(t *testing.T, w way, servers *apiServers, operator *process, changed func(int, int64)) *result {
	t.Helper()
	clock := clock{*scale}
	lab.Eventually(t, patience, "the operator has looked at all runtimes", func() bool {
		return servers.all(func(a *apiServer) bool { return a.looks > 0 })
	})
	<-time.After(clock.scaled(2 * outbox.Defaults().ResendResync))
	before, gets := operator.used(t), servers.gets.Load()
	ctx, stop := context.WithTimeout(t.Context(), clock.scaled(*duration))
	defer stop()
	servers.change(ctx, clock, changed)
	after := operator.used(t)
	r := &result{
		name: w.name, gets: hourly(servers.gets.Load() - gets), requests: hourly(after.Requests - before.Requests),
		processor: hourly(after.Processor - before.Processor),
	}
	lab.Eventually(t, patience, "the operator has seen all changes", func() bool {
		return servers.all(func(a *apiServer) bool { return len(a.unseen) == 0 })
	})
	for i := range servers.runtimes {
		r.delays = append(r.delays, servers.runtimes[i].delays...)
	}
	for i := range r.delays {
		r.delays[i] = clock.unscaled(r.delays[i], w)
	}
	slices.Sort(r.delays)
	return r
}

// hourly returns the value for an hour, from the measured one.
func hourly[T int64 | time.Duration](measured T) T {
	return T(float64(measured) * time.Hour.Seconds() / duration.Seconds())
}

// unscaled returns a delay with the waits of the true time. With events that is the settle time, and
// everything else is work. With polling it is nearly all of the delay.
func (c clock) unscaled(delay time.Duration, w way) time.Duration {
	if w.events {
		return delay - c.scaled(outbox.Defaults().Settle) + outbox.Defaults().Settle
	}
	return delay * time.Duration(c.scale)
}

// patience bounds each wait for the operator, on a busy machine, too.
const patience = 5 * time.Minute

// process is an operator in a process of its own.
type process struct {
	in  io.Writer
	out *bufio.Reader
}

// startOperator also returns the address of its listener, "" without one.
func startOperator(t *testing.T, s settings) (p *process, address string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), operatorSettings+"="+string(must(json.Marshal(s))))
	command.Stderr = os.Stderr
	in, out := must(command.StdinPipe()), must(command.StdoutPipe())
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	p = &process{in: in, out: bufio.NewReader(out)}
	return p, strings.TrimSpace(p.line(t))
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the operator has ended: %v", err)
	}
	return line
}

// used returns the resources that the operator has used.
func (p *process) used(t *testing.T) (u used) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(p.line(t)), &u); err != nil {
		t.Fatal(err)
	}
	return u
}

// writeKeys writes the key material of the operator, which is a client of the API servers and the
// server of its listener.
func writeKeys(t *testing.T, ca *testpki.CA) string {
	t.Helper()
	folder := t.TempDir()
	leaf := must(ca.Server("operator", testpki.Options{Usages: lab.BothUsages()}))
	for name, text := range map[string][]byte{
		"ca.crt": ca.PEM(), "tls.crt": leaf.CertPEM(), "tls.key": must(leaf.KeyPEM()),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
