// Package fleetlab measures a fleet on one machine, and checks that nothing is lost.
//
// The test process plays N runtimes. Each has its own key, certificate, connection and agent
// library, with heartbeats and random changes. Other processes are replicas of the operator of the laboratory: a
// listener with SAN pinning against the cache of a controller manager, a fleet, and a workqueue.
// They run against a real API server. TLS and the loopback interface are real, too.
//
// An oracle keeps the time of each change. A change is missed if its runtime is not reconciled
// after it.
package fleetlab

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/operator"
)

var (
	runtimes    = flag.Int("n", 1000, "number of runtimes")
	only        = flag.String("scenario", "", "names of scenarios, separated by commas (default all)")
	heartbeat   = flag.Duration("heartbeat", outbox.Defaults().HeartbeatInterval, "interval of heartbeats")
	changeEvery = flag.Duration("change-every", time.Minute, "mean time between two changes of a runtime")
	hold        = flag.Duration("hold", time.Minute, "duration of a scenario, or of its fault")
	lease       = flag.Duration("lease", 8*time.Second, "duration of the lease of a leader")
	protocol    = flag.String("protocol", "", "protocol of the agents: h2 or http/1.1 (default that of the agent)")
	patience    = flag.Duration("patience", 5*time.Minute, "bound of each wait for a condition")
)

func TestMain(m *testing.M) { os.Exit(operator.Main(func() int { return lab.RunTests(m) })) }

const (
	// manager is the name of the operator.
	manager core.Manager = "lab-operator"
	// poll is the time between two readings of its files.
	poll = 5 * time.Second
)

// TestFleet plays the scenarios one after the other, and prints a table.
func TestFleet(t *testing.T) {
	w := newWorld(t, *runtimes, false)
	table := []string{"| " + strings.Join(columns(), " | ") + " |"}
	for _, s := range scenarios() {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		r := w.play(s)
		t.Log(r)
		table = append(table, r.String())
		if r.missed > 0 {
			t.Errorf("%s: %d runtimes were not reconciled after their last change", s.name, r.missed)
		}
		if r.looks == 0 || len(r.look) == 0 || len(r.ack) == 0 {
			t.Errorf("%s: %d reconciles, no latencies: nothing is measured", s.name, r.looks)
		}
	}
	t.Logf("%d runtimes, a change of each every %v\n%s", *runtimes, *changeEvery, strings.Join(table, "\n"))
}

// TestFleetCanFail ignores the reconciles of every seventh runtime.
func TestFleetCanFail(t *testing.T) {
	w := newWorld(t, 20, true)
	for _, r := range w.runtimes {
		r.change(0)
	}
	if missed := w.awaitSeen(5 * time.Second); missed != 3 {
		t.Errorf("%d runtimes were not reconciled after their last change, want 3", missed)
	}
}

func columns() []string {
	return []string{
		"scenario", "memory each, stacks, heap", "processor, operator + lab", "acknowledged p50 / p99",
		"commit to reconcile p50 / p99", "connected / fresh after", "changes, reconciles", "resyncs", "connections, failures",
		"missed", "remarks",
	}
}

// result is the measurement of a scenario.
type result struct {
	totals // during the scenario

	scenario string
	// memory is the resident memory of the operator for each runtime above that without connections.
	// Beside it, stacks and heap are those of its last report. All are in KiB.
	memory, stacks, heap float64
	// ack is the duration of requests with events, look from a change to the start of the first
	// reconcile after it.
	ack, look kit.Delays
	// connected and fresh are the times from the end of the fault until all runtimes were.
	connected, fresh time.Duration
	missed           int
	notes            []string
}

func (r *result) String() string {
	cells := []string{
		r.scenario, fmt.Sprintf("%.1f, %.1f, %.1f KiB", r.memory, r.stacks, r.heap),
		fmt.Sprintf("%.1f + %.1f s", r.operator.Seconds(), r.lab.Seconds()),
		fmt.Sprintf("%v / %v", r.ack.At(50), r.ack.At(99)), fmt.Sprintf("%v / %v", r.look.At(50), r.look.At(99)),
		fmt.Sprintf("%.1f / %.1f s", r.connected.Seconds(), r.fresh.Seconds()),
		fmt.Sprintf("%d, %d", r.changes, r.looks), fmt.Sprint(r.resyncs),
		fmt.Sprintf("%d, %d", r.dials, r.failures), strconv.Itoa(r.missed), strings.Join(r.notes, "; "),
	}
	return "| " + strings.Join(cells, " | ") + " |"
}
