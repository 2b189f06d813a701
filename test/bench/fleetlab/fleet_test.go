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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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

// scenario is a fault, or a load, of a fleet that works. run returns when the fault is over, and
// from when the recovery counts. Then all runtimes must become fresh, and all changes must be
// reconciled.
type scenario struct {
	name string
	run  func(w *world, r *result) (ended time.Time)
}

// scenarios returns all scenarios in the order in which they are played.
func scenarios() []scenario {
	return []scenario{
		{"steady", steady},
		{"storm", storm},
		{"restart", restart},
		{"leader", leader},
		{"rotation", rotation},
		{"flapping", flapping},
	}
}

// steady has heartbeats and random changes only.
func steady(*world, *result) time.Time { return <-time.After(*hold) }

// storm has a hundred changes of each runtime in ten seconds.
func storm(w *world, r *result) time.Time {
	const each, over = 100, 10 * time.Second
	began := time.Now()
	total := each * len(w.runtimes)
	for i := range total {
		if wait := over*time.Duration(i)/time.Duration(total) - time.Since(began); wait > 0 {
			<-time.After(max(wait, 5*time.Millisecond))
		}
		w.runtimes[i%len(w.runtimes)].change(i / len(w.runtimes))
	}
	ended := time.Now()
	w.awaitSeen(*patience)
	r.note("all changes reconciled after", ended)
	<-time.After(outbox.Defaults().ResendResync)
	return ended
}

func (r *result) note(what string, since time.Time) {
	r.notes = append(r.notes, fmt.Sprintf("%s %v", what, time.Since(since).Round(time.Millisecond)))
}

// restart kills the operator, changes all runtimes, and starts the operator again. Its lease is
// removed, so that it leads immediately, as one without leader election.
func restart(w *world, r *result) time.Time {
	w.operator().Kill()
	ended := time.Now()
	lab.NoError(w.t, w.plane.Client.Delete(w.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: w.namespace},
	}))
	w.changeAll()
	w.network.lead(w.startReplica().address)
	w.awaitLeader(r, ended)
	return ended
}

// leader kills the leader beside another replica, and changes all runtimes.
func leader(w *world, r *result) time.Time {
	old := w.operator()
	standby := w.startReplica()
	w.await("the other replica listens", func() bool { return lab.Accepts(standby.address) })
	w.network.lead(old.address, standby.address)
	old.Kill()
	ended := time.Now()
	w.network.lead(standby.address)
	w.changeAll()
	w.awaitLeader(r, ended)
	return ended
}

func (w *world) changeAll() {
	for _, r := range w.runtimes {
		r.change(0)
	}
}

func (w *world) awaitLeader(r *result, killed time.Time) {
	w.await("the operator leads", func() bool { return w.now().Leading })
	r.note("leads after", killed)
}

// rotation replaces the CA, all leaves of runtimes and that of the operator, with overlap.
func rotation(w *world, _ *result) time.Time {
	// Agents and operator have read their key material then.
	wait := func() { <-time.After(2 * poll) }
	old := w.ca
	next := lab.Must(testpki.NewCA("CA "+time.Now().String(), testpki.Options{}))
	w.serve(old, old, next)
	wait()
	w.rolling(func(r *runtime) { r.trust(old, next) })
	wait()
	w.serve(next, old, next)
	wait()
	w.rolling(func(r *runtime) {
		r.renew(next)
		r.trust(old, next)
	})
	w.rolling(func(r *runtime) { r.trust(next) })
	wait()
	w.serve(next, next)
	wait()
	w.ca = next
	return time.Now()
}

// rolling calls change for each runtime, spread over half of the duration of a fault.
func (w *world) rolling(change func(*runtime)) {
	for _, r := range w.runtimes {
		change(r)
		<-time.After(*hold / 2 / time.Duration(len(w.runtimes)))
	}
}

// flapping kills and starts one agent of a hundred again and again, after changes that it may not
// have sent.
func flapping(w *world, r *result) time.Time {
	const oneIn, changes = 100, 10
	var (
		flaps atomic.Int64
		all   sync.WaitGroup
		over  = time.Now().Add(*hold)
	)
	for i := 0; i < len(w.runtimes); i += oneIn {
		all.Go(func() {
			for time.Now().Before(over) {
				flaps.Add(1)
				for object := range changes {
					w.runtimes[i].change(object)
				}
				w.runtimes[i].stop()
				w.runtimes[i].start()
				<-time.After(*hold / changes)
			}
		})
	}
	all.Wait()
	r.notes = append(r.notes, fmt.Sprintf("%d restarts of agents", flaps.Load()))
	return time.Now()
}
