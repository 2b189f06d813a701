package loss

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// patience bounds each wait, also on a busy machine. Package simulation judges the time of a recovery.
const patience = 5 * time.Minute

// TestNothingIsLost makes faults at random and compares every write with the reconciles of the
// operator.
func TestNothingIsLost(t *testing.T) { playSeeds(t, chosen(t)) }

// TestRows plays one schedule with each other source and transport.
func TestRows(t *testing.T) {
	t.Parallel()
	plane, pki := newWorld(t)
	for with, schedule := range rows(t) {
		t.Run(with.name, func(t *testing.T) { run(t, plane, pki, schedule.Replace(with.faults()), with) })
	}
}

// TestKilledLeader kills the leader of three replicas behind a gateway.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	plane, pki := newWorld(t)
	with := setup{name: "leader", source: sourceAdmission, transport: transportHTTP, way: route}
	r := run(t, plane, pki, kills(LeaderKilled, *leaderKills, *lease, 0), with)
	t.Logf("%d writes, lease %v: the last reconcile came %v after the faults", r.writes, *lease, r.slowest().Round(time.Millisecond))
}

// TestActiveReplicas has three replicas without leader election, each with a fleet, and kills one.
func TestActiveReplicas(t *testing.T) {
	t.Parallel()
	plane, pki := newWorld(t)
	with := setup{name: "active", source: sourceAdmission, transport: transportHTTP, way: active}
	run(t, plane, pki, kills(OperatorKilled, 1, slot, time.Second), with)
}

// TestTheSuiteCanFail plays the same schedules with a forwarder of the kind that is deployed today.
func TestTheSuiteCanFail(t *testing.T) {
	unseen, lost, outages := 0, 0, 0
	for _, r := range playSeeds(t, setup{name: "naive", source: sourceAdmission, transport: transportHTTP, naive: true}) {
		unseen, outages = unseen+r.misses(), outages+r.schedule.outages()
		// Events that came too early do not count. The test counts events that an outage loses.
		lost += r.count(func(v lab.Verdict) bool { return !v.Seen && !v.Stale })
	}
	t.Logf("the naive forwarder left %d objects unseen, for %d of which the operator got no event", unseen, lost)
	if unseen == 0 || outages > 0 && lost == 0 {
		t.Errorf("the naive forwarder lost no event, or none in %d outages: the suite cannot fail", outages)
	}
}

// playSeeds plays the schedules of the seeds.
func playSeeds(t *testing.T, with setup) []result {
	t.Helper()
	if *parallel {
		t.Parallel()
	}
	plane, pki := newWorld(t)
	all := make([]result, *seeds)
	t.Run("seeds", func(t *testing.T) {
		for n := range *seeds {
			schedule := NewSchedule(*seed+n, *duration).Replace(with.faults())
			t.Run(strconv.FormatUint(schedule.Seed, 10), func(t *testing.T) {
				if *parallel {
					t.Parallel()
				}
				all[n] = run(t, plane, pki, schedule, with)
			})
		}
	})
	return all
}

func newWorld(t *testing.T) (*apiserver.ControlPlane, *lab.PKI) {
	t.Helper()
	crds := []*apiextensionsv1.CustomResourceDefinition{lab.WidgetCRD()}
	return lab.SharedAPIServer(t, apiserver.Options{CRDs: crds}), lab.NewPKI(t)
}

// run plays one schedule, and returns its result.
func run(t *testing.T, plane *apiserver.ControlPlane, pki *lab.PKI, schedule Schedule, with setup) result {
	t.Helper()
	t.Log(schedule)
	s := newScene(t, plane, pki, schedule, with)
	writers := startWriters(s, schedule.Seed)
	began, ended := s.play(schedule)
	if with.way == active {
		s.awaitShared() // They find it by events.
	}
	return s.judge(writers, schedule, began, ended)
}

// judge stops the writers, and compares their writes with the reconciles.
func (s *scene) judge(writers *writers, schedule Schedule, began, ended time.Duration) result {
	s.t.Helper()
	writers.finish()
	r := result{schedule: schedule, ended: ended, writes: writers.ledger.Count()}
	s.await(&r, writers.ledger)
	for _, d := range s.deliveries {
		switch {
		case d.Refused != "":
		case d.Kind == "changed":
			r.events++
		default:
			r.resyncs++
		}
	}
	r.failedOpen = s.failedOpen()
	s.t.Log(&r)
	if !s.with.naive {
		s.checkAccounts()
		const most = 40
		if s.with.way == active && r.resyncs > most {
			s.t.Errorf("want at most %d resyncs", most)
		}
		s.report(&r, began)
	}
	return r
}

// report logs the history of each object with a last write that was not seen.
func (s *scene) report(r *result, began time.Duration) {
	s.t.Helper()
	into := func(at time.Duration) string { return fmt.Sprintf("%.3f s into the schedule", (at - began).Seconds()) }
	for _, name := range slices.Sorted(maps.Keys(r.verdicts)) {
		v := r.verdicts[name]
		if v.Seen {
			continue
		}
		s.t.Errorf("seed %d: the last write to %s, of version %d, from %s to %s, was never seen, in %d reconciles of it",
			r.schedule.Seed, name, v.Last.Version, into(v.Last.Sent), into(v.Last.Returned), v.Looks)
		from := v.Last.Sent - 2*time.Second
		for _, d := range s.deliveries {
			if d.At > from && (d.Object == name || d.Kind != "changed") {
				s.t.Logf("%s of %q delivered %s, refused: %q", d.Kind, d.Object, into(d.At), d.Refused)
			}
		}
		for _, at := range s.service.Failed() {
			if at > from && at < v.Last.Returned {
				s.t.Logf("the API server did not reach an agent %s", into(at))
			}
		}
		for i := range s.looks {
			if look := &s.looks[i]; look.Started > from && (look.Object == name || look.Object == "") {
				s.t.Logf("a reconcile of %q %s saw version %q", look.Object, into(look.Started), look.Versions[name])
			}
		}
	}
}

// await waits until everything is seen, or the time is over.
func (s *scene) await(r *result, ledger *lab.Ledger) {
	s.t.Helper()
	limit := patience
	if s.with.naive {
		limit = 5 * time.Second // It has sent everything by then.
	}
	for {
		s.read()
		r.verdicts = ledger.Judge(s.looks)
		if r.misses() == 0 || record.Now() > r.ended+limit {
			return
		}
		s.wait(record.Now() + 500*time.Millisecond)
	}
}

// checkAccounts makes sure that every event that an agent accepted has one fate.
func (s *scene) checkAccounts() {
	s.t.Helper()
	const (
		prefix = "runtime_watcher_agent_events_"
		// most has room for the connections that the API server keeps, two goroutines each.
		most = 250
	)
	for _, one := range s.senders {
		if !one.Running() {
			continue
		}
		one.agent.AwaitReady()
		lab.Eventually(s.t, patience, "nothing is pending", func() bool { return one.agent.Metric(prefix+"pending") == 0 })
		text, fates, sum := one.agent.Scrape(), map[string]float64{}, 0.0
		for _, fate := range []string{"delivered_total", "coalesced_total", "dropped_total", "pending"} {
			fates[fate] = lab.Sum(text, prefix+fate)
			sum += fates[fate]
		}
		accepted, goroutines := lab.Sum(text, prefix+"accepted_total"), lab.Sum(text, "go_goroutines")
		s.t.Logf("%v events accepted, %v; %v goroutines at rest", accepted, fates, goroutines)
		if goroutines > most {
			s.t.Errorf("want at most %d goroutines", most)
		}
		if accepted == 0 || accepted != sum {
			s.t.Errorf("%v events accepted, and the sum of the fates is %v", accepted, sum)
		}
	}
}

// failedOpen returns how many writes the API server went on with without an answer.
func (s *scene) failedOpen() float64 {
	s.t.Helper()
	return lab.Sum(lab.ScrapeAPIServer(s.t, s.plane), "apiserver_admission_webhook_fail_open_count", s.webhook())
}

// webhook is the label of the webhook in the metrics of the API server.
func (s *scene) webhook() string {
	return fmt.Sprintf("name=%q", lab.Namespace+"."+s.name+".operator.kyma-project.io")
}

// result is the result of a schedule.
type result struct {
	schedule                Schedule
	ended                   time.Duration
	writes, events, resyncs int
	failedOpen              float64
	verdicts                map[string]lab.Verdict
}

func (r *result) misses() int { return r.count(func(v lab.Verdict) bool { return !v.Seen }) }

// slowest returns the time from the end of the faults, or from a later write, until the last object
// was seen.
func (r *result) slowest() (slowest time.Duration) {
	for _, v := range r.verdicts {
		if v.Seen {
			slowest = max(slowest, v.At-max(v.Last.Returned, r.ended))
		}
	}
	return slowest
}

func (r *result) count(of func(lab.Verdict) bool) (n int) {
	for _, v := range r.verdicts {
		if of(v) {
			n++
		}
	}
	return n
}

// String has a line for make chaos.
func (r *result) String() string {
	return fmt.Sprintf("seed %d: %d writes, %d events, %d resyncs, %v failed open; of %d objects %d by resync, %d early, %d stale, "+
		"%d missed; the slowest after %v", r.schedule.Seed, r.writes, r.events, r.resyncs, r.failedOpen, len(r.verdicts),
		r.count(func(v lab.Verdict) bool { return v.Resync }), r.count(func(v lab.Verdict) bool { return v.Early }),
		r.count(func(v lab.Verdict) bool { return v.Stale }), r.misses(), r.slowest().Round(time.Millisecond))
}
