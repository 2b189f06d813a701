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

// patience bounds each wait. Package simulation judges the time of a recovery.
const patience = lab.Patience

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

// TestWritesDoNotWaitForTheControlPlane has a control plane in one state after the other. In each state, the agent
// allows each write, and none waits. Each object is reconciled after its last commit.
func TestWritesDoNotWaitForTheControlPlane(t *testing.T) {
	plane, pki := newWorld(t)
	with := setup{name: "states", source: sourceAdmission, transport: transportHTTP}
	whileWriting(t, plane, pki, with, func(s *scene, ledger *lab.Ledger) {
		for _, kind := range []Kind{
			lab.Up, lab.Refusing, lab.Unavailable, lab.TooFast, lab.Forbidden, lab.Hanging, lab.HalfOpen, BlackHole,
			lab.NoHandshake, lab.OtherCA, lab.OtherName, Slow,
		} {
			s.lasts(Fault{Kind: kind, Strength: 99}, ledger)
		}
	})
}

// whileWriting runs do with one agent while objects are written. The agent answers each call of the API server.
func whileWriting(
	t *testing.T, plane *apiserver.ControlPlane, pki *lab.PKI, with setup, do func(s *scene, ledger *lab.Ledger),
) *scene {
	t.Helper()
	schedule := Schedule{Replicas: 1}
	s := newScene(t, plane, pki, schedule, with)
	writers := startWriters(s, schedule.Seed)
	began := record.Now()
	do(s, writers.ledger)
	if r := s.judge(writers, schedule, began, record.Now()); r.failedOpen > 0 {
		t.Errorf("the API server went on without an answer %v times, want never", r.failedOpen)
	}
	return s
}

// lasts makes a fault until so many more writes are committed, and checks the calls of the webhook meanwhile.
func (s *scene) lasts(f Fault, ledger *lab.Ledger) {
	s.t.Helper()
	const (
		writes = 40
		// mostWait is the longest mean. It is far below the 10 s for which an agent waits for a control plane that hangs, and
		// far above the time of an answer on a busy machine.
		mostWait = 2500 * time.Millisecond
		waited   = "apiserver_admission_webhook_admission_duration_seconds"
	)
	s.begin(f)
	began := ledger.Count()
	text := lab.ScrapeAPIServer(s.t, s.plane)
	lab.Eventually(s.t, patience, string(f.Kind)+": more writes", func() bool { return ledger.Count() >= began+writes })
	after := lab.ScrapeAPIServer(s.t, s.plane)
	s.end(f)
	sum := func(name string, labels ...string) float64 {
		labels = append(labels, s.webhook())
		return lab.Sum(after, name, labels...) - lab.Sum(text, name, labels...)
	}
	mean := sum(waited+"_sum") / sum(waited+"_count")
	s.t.Logf("%s: the API server waited %.3f s in the mean", f.Kind, mean)
	if !(mean < mostWait.Seconds()) { // Also without any.
		s.t.Errorf("%s: the API server waited %.3f s in the mean for the webhook, want at most %v", f.Kind, mean, mostWait)
	}
	// Some writes were on their way when the state began.
	if n := sum("apiserver_admission_webhook_request_total", `code="200"`, `rejected="false"`); n < writes/2 {
		s.t.Errorf("%s: %v calls were allowed, want one for each of about %d writes", f.Kind, n, writes)
	}
}

// TestTheSuiteCanFail plays the same schedules with a forwarder of the kind that is deployed today.
func TestTheSuiteCanFail(t *testing.T) {
	unseen := 0
	lost := 0
	outages := 0
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
	r.failedOpen = lab.FailedOpen(s.t, s.plane, s.webhook())
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
	const most = 250 // With room for the connections that the API server keeps, two goroutines each.
	for _, one := range s.senders {
		if !one.Running() {
			continue
		}
		one.agent.AwaitReady()
		one.agent.CheckAccounts()
		if n := one.agent.Metric("go_goroutines"); n > most {
			s.t.Errorf("%v goroutines at rest, want at most %d", n, most)
		}
	}
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
	failedOpen              int
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
