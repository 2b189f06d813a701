package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	lm "github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	runtimes = flag.Int("runtimes", 0, "number of runtimes to measure; 0: no measurement")
	scale    = flag.Int("scale", 20, "waits are shorter by this factor")
	duration = flag.Duration("duration", 2*time.Hour, "time to measure, before it is scaled")
	interval = flag.Duration("heartbeats", 30*time.Second, "longest time between two heartbeats, before it is scaled")
)

// settle is the default of the agent.
const settle = 100 * time.Millisecond

// way is how the operator learns of changes.
type way struct {
	name           string
	fresh, unfresh time.Duration
	events         bool
}

// TestEventsAgainstPolling prints the table of docs/maintainers/measurements.md. A user edits a Deployment of a
// module in each runtime, once an hour on average, and waits until the operator has corrected it.
func TestEventsAgainstPolling(t *testing.T) {
	if *runtimes == 0 {
		t.Skip("a measurement of minutes: -args -runtimes=20")
	}
	d := newMeasurement(t)
	for _, w := range []way{
		{"events, polling every hour", time.Hour, time.Minute, true},
		{"polling every 5 min", 5 * time.Minute, 5 * time.Minute, false},
		{"polling every 30 s", 30 * time.Second, 30 * time.Second, false},
	} {
		t.Log(d.measure(t, w))
	}
}

func scaled(d time.Duration) time.Duration { return d / time.Duration(*scale) }

// hourly returns the count of an hour.
func hourly[T int | time.Duration](measured T) T {
	return T(float64(measured) * time.Hour.Seconds() / duration.Seconds())
}

// measurement is a lab in which every runtime has the module.
type measurement struct {
	*demo

	ids []string
}

func newMeasurement(t *testing.T) *measurement {
	t.Helper()
	d := &measurement{demo: &demo{out: os.Stderr}}
	for i := range *runtimes {
		d.ids = append(d.ids, fmt.Sprintf("runtime-%d", i+1))
	}
	d.Lab = lab.New(t, lab.Options{Runtimes: d.ids, OperatorArgs: []string{
		"-leader-elect=false", "-agent-setting=HEARTBEAT_INTERVAL=" + scaled(*interval).String(),
		"-agent-setting=CANARY_INTERVAL=" + scaled(30*time.Second).String(),
		"-agent-setting=SETTLE=" + scaled(settle).String(),
		"-agent-setting=RESEND_AFTER=" + scaled(3*time.Second).String() + "," + scaled(35*time.Second).String(),
		"-agent-setting=RESEND_RESYNC=" + scaled(35*time.Second).String(),
	}})
	for _, stage := range []func(){
		d.Build, d.StartAPIServers, d.StartCertManager, d.deployOperator,
		d.addsModules("keda-1.0.0", "logger-0.1.0"), d.registerAll,
	} {
		stage()
	}
	return d
}

// registerAll registers all runtimes, with the module enabled, and waits until it is there.
func (d *measurement) registerAll() {
	for _, id := range d.ids {
		d.Register(id, nil)
	}
	for _, id := range d.ids {
		d.Eventually("the user has a Kyma", func() bool {
			_, err := d.userKyma(id)
			return err == nil
		})
		d.enablesModules(id, lm.Module{Name: "keda"})()
	}
	d.Eventually("all runtimes have the module", func() bool {
		return !slices.ContainsFunc(d.ids, func(id string) bool { return !d.runsVersion(id, "1.0.0")() || !d.hasState(id, fleet.Fresh, "") })
	})
}

// cost is the work of an operator since it has started.
type cost struct {
	// requests are those to the API servers of all runtimes.
	requests int
	// reconciles are those of all controllers and causes.
	reconciles int
	// processor is the processor time of the replica that leads.
	processor time.Duration
}

func (d *measurement) cost(ctx context.Context) (c cost, err error) {
	text, err := d.Metrics(ctx)
	if err != nil {
		return c, err
	}
	c.reconciles = int(rig.Sum(text, "lifecycle_manager_reconciles_total"))
	for _, id := range d.ids {
		c.requests += int(rig.Sum(text, "rest_client_requests_total", `host="`+d.Runtimes[id].Addr()+`"`))
	}
	leader, err := d.Leader(ctx)
	if err != nil {
		return c, err
	}
	used, err := kit.UsageOf(leader.Pid())
	c.processor = used.Processor
	return c, err
}

// result is the cost of one way in an hour, and the delays from the edits to the corrections.
type result struct {
	way

	cost
	delays []time.Duration
}

func (r result) percentile(p int) time.Duration { return r.delays[(len(r.delays)-1)*p/100] }

// String is a row of the table.
func (r result) String() string {
	return fmt.Sprintf("| %s | %d | %.2f / %.2f s | %d | %d | %.1f s |", r.name, len(r.delays),
		r.percentile(50).Seconds(), r.percentile(99).Seconds(), r.requests, r.reconciles, r.processor.Seconds())
}

// measure starts the operator anew, and measures when all its first looks and resends are over.
func (d *measurement) measure(t *testing.T, w way) result {
	t.Helper()
	ctx := t.Context()
	if !w.events {
		rig.NoError(t, d.deleteWatchers(ctx))
	}
	d.Reconfigure(1, "-poll-fresh="+scaled(w.fresh).String(), "-poll-otherwise="+scaled(w.unfresh).String())
	await(ctx, 20*time.Second+scaled(2*time.Minute))
	before, err := d.cost(ctx)
	rig.NoError(t, err)
	delays := d.change(t)
	after, err := d.cost(ctx)
	rig.NoError(t, err)
	slices.Sort(delays)
	for i := range delays {
		delays[i] = unscaled(delays[i], w)
	}
	return result{way: w, delays: delays, cost: cost{
		requests: hourly(after.requests - before.requests), reconciles: hourly(after.reconciles - before.reconciles),
		processor: hourly(after.processor - before.processor),
	}}
}

// unscaled returns a delay with the waits of the true time. With events that is the settle time, and
// everything else is work. With polling it is nearly all of the delay.
func unscaled(delay time.Duration, w way) time.Duration {
	if w.events {
		return delay - scaled(settle) + settle
	}
	return delay * time.Duration(*scale)
}

// deleteWatchers leaves webhooks in the runtimes for the canary only.
func (d *measurement) deleteWatchers(ctx context.Context) error {
	return d.Plane.DeleteAllOf(ctx, &v1beta2.Watcher{}, client.InNamespace("kcp-system"))
}

// change edits runtimes until the time is over, and returns how long each edit stayed.
func (d *measurement) change(t *testing.T) (delays []time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), scaled(*duration))
	defer stop()
	var (
		mu      sync.Mutex
		editing sync.WaitGroup
		free    = slices.Clone(d.ids)
	)
	for ctx.Err() == nil {
		await(ctx, time.Duration(rand.ExpFloat64()*float64(scaled(time.Hour))/float64(*runtimes)))
		mu.Lock()
		if len(free) == 0 || ctx.Err() != nil {
			mu.Unlock()
			continue
		}
		i := rand.IntN(len(free))
		id := free[i]
		free = slices.Delete(free, i, i+1)
		mu.Unlock()
		editing.Go(func() {
			took := d.untilCorrect(id)
			mu.Lock()
			defer mu.Unlock()
			free, delays = append(free, id), append(delays, took)
		})
	}
	editing.Wait()
	return delays
}

// untilCorrect edits a Deployment and waits for the correction.
func (d *measurement) untilCorrect(id string) time.Duration {
	d.editsDeployment(id)()
	began := time.Now()
	d.Eventually("the edit is corrected", d.runsVersion(id, "1.0.0"))
	return time.Since(began)
}

func await(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}
