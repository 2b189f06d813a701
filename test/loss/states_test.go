package loss

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// TestWritesDoNotWaitForTheControlPlane has a control plane in one state after the other. In each state, the agent
// allows each write, and none waits. Each object is reconciled after its last commit.
func TestWritesDoNotWaitForTheControlPlane(t *testing.T) {
	plane, pki := newWorld(t)
	schedule := Schedule{Replicas: 1}
	s := newScene(t, plane, pki, schedule, setup{name: "states", source: sourceAdmission, transport: transportHTTP})
	writers, began := startWriters(s, schedule.Seed), record.Now()
	for _, kind := range []Kind{
		lab.Up, lab.Refusing, lab.Unavailable, lab.TooFast, lab.Forbidden, lab.Hanging, lab.HalfOpen, BlackHole,
		lab.NoHandshake, lab.OtherCA, lab.OtherName, Slow,
	} {
		s.lasts(Fault{Kind: kind, Strength: 99}, writers.ledger)
	}
	if r := s.judge(writers, schedule, began, record.Now()); r.failedOpen > 0 {
		t.Errorf("the API server went on without an answer %v times, want never", r.failedOpen)
	}
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
	began, text := ledger.Count(), lab.ScrapeAPIServer(s.t, s.plane)
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
