package watchermetrics_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/installations"
)

func newFleet(t testing.TB, opts fleet.Options) *fleet.Fleet {
	t.Helper()
	return must(fleet.New(opts))(t)
}

// useFleet has runtimes in several states, and one too many.
func useFleet(t *testing.T) *fleet.Fleet {
	t.Helper()

	f := newFleet(t, fleet.Options{MaxStatuses: 3})
	expiry := time.Unix(4_000_000_000, 0)
	f.Receiver().Observe(peer("fresh", expiry), "kyma", core.Batch{
		Epoch:  "e",
		Events: []core.Numbered{{WatchEvent: core.WatchEvent{Resync: true}, Sequence: 1}},
		Heartbeat: beat(core.Heartbeat{
			Sequence: 1, Pending: 2, OldestPending: 3 * time.Second, Canary: core.CanaryAlive, Version: "v1.2.3",
		}),
	}, nil)

	f.Receiver().Observe(peer("loses", expiry.Add(time.Hour)), "kyma", core.Batch{Epoch: "e", Heartbeat: beat(core.Heartbeat{
		Canary: core.CanaryLost, Pending: 1, OldestPending: time.Second,
	})}, nil)
	f.Receiver().Observe(peer("silent", time.Time{}), "kyma", core.Batch{
		Epoch:     "e",
		Events:    []core.Numbered{{Sequence: 1}},
		Heartbeat: beat(core.Heartbeat{Leaving: true, Sequence: 1}),
	}, nil)

	f.Receiver().Observe(peer("beyond", time.Time{}), "kyma", core.NewBatch(core.WatchEvent{}), nil)
	return f
}

func peer(id core.RuntimeID, expiry time.Time) core.Peer { return core.Peer{ID: id, NotAfter: expiry} }

func beat(b core.Heartbeat) *core.Heartbeat {
	b.Number = 1
	b.Interval = 30 * time.Second
	return &b
}

func fleetRegistry(t testing.TB, f *fleet.Fleet, opts watchermetrics.Options) *prom.Registry {
	t.Helper()

	reg := prom.NewPedanticRegistry()
	check(t, watchermetrics.RegisterFleet(reg, f, opts))
	return reg
}

// values are the lines of a scrape of fleet or installations, without comments and without zeros.
func values(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0") {
			lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(line, "runtime_watcher_fleet_"), "runtime_watcher_installation_"))
		}
	}
	return lines
}

// A scrape has the numbers of the fleet for each manager.
func TestFleet(t *testing.T) {
	text := scrape(t, fleetRegistry(t, useFleet(t), watchermetrics.Options{}))
	want := []string{
		`events_pending{manager="kyma"} 3`,
		`first_certificate_expiry_timestamp_seconds{manager="kyma"} 4e+09`,
		`oldest_event_pending_seconds{manager="kyma"} 3`,
		`resyncs_pending{manager="kyma"} 2`,
		`runtimes{manager="kyma",reason="",state="fresh"} 1`,
		`runtimes{manager="kyma",reason="canary_lost",state="degraded"} 1`,
		`runtimes{manager="kyma",reason="stopped",state="stale"} 1`,
		`runtimes_by_version{manager="kyma",version="v1.2.3"} 1`,
		`untracked_total{manager="kyma"} 1`,
	}
	if diff := cmp.Diff(want, values(text)); diff != "" {
		t.Errorf("exposed, without zeros (-want +got):\n%s", diff)
	}
	if n := strings.Count(text, "\nruntime_watcher_fleet_runtimes{"); n != len(fleet.Conditions()) {
		t.Errorf("%d series of runtimes, want %d: all states from the start", n, len(fleet.Conditions()))
	}
	if strings.Contains(text, `runtime="`) {
		t.Error("single runtimes are exposed without PerRuntime")
	}
}

func TestFleetOfConfiguredManagersIsThereFromTheStart(t *testing.T) {
	opts := watchermetrics.Options{Managers: []core.Manager{"kyma"}}
	text := scrape(t, fleetRegistry(t, newFleet(t, fleet.Options{}), opts))
	wantLines(t, text, `fleet_runtimes{manager="kyma",reason="",state="stale"} 0`+"\n",
		`fleet_resyncs_total{cause="gap",manager="kyma"} 0`+"\n")
}

// With a bound, the runtimes that are not fresh have series, and they come first.
func TestFleetPerRuntime(t *testing.T) {
	text := scrape(t, fleetRegistry(t, useFleet(t), watchermetrics.Options{PerRuntime: 2}))
	// "loses" and "silent" are worth a look, "fresh" is not.
	want := []string{
		`runtime_oldest_event_pending_seconds{manager="kyma",runtime="loses"} 1`,
		`runtime_oldest_event_pending_seconds{manager="kyma",runtime="silent"} 0`,
		`runtime_state{manager="kyma",reason="canary_lost",runtime="loses",state="degraded"} 1`,
		`runtime_state{manager="kyma",reason="stopped",runtime="silent",state="stale"} 1`,
	}

	var got []string
	for _, line := range regexp.MustCompile(`(?m)^runtime_watcher_fleet_(runtime_.*)$`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(line[1], "heard") {
			got = append(got, line[1])
		}
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series of single runtimes (-want +got):\n%s", diff)
	}
}

func TestFleetManagersAreBounded(t *testing.T) {
	f := newFleet(t, fleet.Options{})
	for n := range 1000 {
		f.Receiver().Observe(peer("runtime", time.Time{}), core.Manager(fmt.Sprintf("manager-%d", n)),
			core.NewBatch(core.WatchEvent{}), nil)
	}

	f.Receiver().Observe(peer("runtime", time.Time{}), "Not A Label\xff", core.NewBatch(core.WatchEvent{}), nil)
	opts := watchermetrics.Options{Managers: []core.Manager{"zz"}, MaxManagers: 3}
	text := scrape(t, fleetRegistry(t, f, opts))
	n := strings.Count(text, "\nruntime_watcher_fleet_events_pending{")
	if n != 3 || !strings.Contains(text, `manager="zz"`) {
		t.Errorf("%d managers are exposed, want 3 with the one that is configured", n)
	}
}

// The metrics of a fleet are read from it: nothing has to be connected.
func ExampleRegisterFleet() {
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		panic(err)
	}

	reg := prom.NewRegistry()
	if err := watchermetrics.RegisterFleet(reg, watched, watchermetrics.Options{}); err != nil {
		panic(err)
	}

	// A listener with listener.Options{Fleet: watched} does this.
	watched.Receiver().Observe(core.Peer{ID: "runtime-1"}, "kyma", core.Batch{Epoch: "e", Heartbeat: &core.Heartbeat{
		Number: 1, Interval: 30 * time.Second, Pending: 7, OldestPending: 90 * time.Second,
	}}, nil)
	printMetrics(reg, `runtime_watcher_fleet_runtimes{manager="kyma",reason="pending_too_long"`)
	printMetrics(reg, "runtime_watcher_fleet_oldest")
	// Output:
	// runtime_watcher_fleet_runtimes{manager="kyma",reason="pending_too_long",state="degraded"} 1
	// runtime_watcher_fleet_oldest_event_pending_seconds{manager="kyma"} 90
}

func installed() installations.All {
	return installations.All{
		Runtimes: map[installations.State]int{
			{State: "Ready"}: 3, {State: "Failed", Reason: "Unreachable"}: 1,
		},
		NeverHeard: map[core.Manager][]core.RuntimeID{"kyma": {"a", "b"}, "other": nil},
		Phase:      "Confirming", Waiting: []core.RuntimeID{"b", "c"}, Overdue: []core.RuntimeID{"c"}, Repairs: 4,
	}
}

// A scrape has the state of the installations, and the bound counts for each problem.
func TestInstallations(t *testing.T) {
	t.Parallel()

	reg := prom.NewPedanticRegistry()
	check(t, watchermetrics.RegisterInstallations(reg, installed, watchermetrics.Options{PerRuntime: 1}))
	text := scrape(t, reg)

	want := []string{
		`ca_phase{phase="Confirming"} 1`,
		`ca_waiting_runtimes 2`,
		`certificates_overdue_runtimes 1`,
		`never_heard_runtimes{manager="kyma"} 2`,
		`repairs_total 4`,
		`runtime_problem{problem="ca_waiting",runtime="b"} 1`,
		`runtime_problem{problem="certificate_overdue",runtime="c"} 1`,
		`runtime_problem{problem="never_heard",runtime="a"} 1`,
		`runtimes{reason="",state="Ready"} 3`,
		`runtimes{reason="Unreachable",state="Failed"} 1`,
	}
	if diff := cmp.Diff(want, values(text)); diff != "" {
		t.Errorf("exposed, without zeros (-want +got):\n%s", diff)
	}

	wantLines(t, text, `never_heard_runtimes{manager="other"} 0`)
}
