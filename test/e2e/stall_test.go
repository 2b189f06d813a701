package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestStalledAgent stops the agent for longer than an API server waits for its webhooks. The agent
// reads calls on an open connection afterwards. A call that needed a new connection is lost without
// a failed handshake, and a resync stands in.
func TestStalledAgent(t *testing.T) {
	const (
		writers  = 6
		stalls   = "runtime_watcher_agent_stalls_total"
		failures = "runtime_watcher_agent_tls_handshake_failures_total"
	)
	s := newScene(t, map[string]string{"RESEND_RESYNC": "0s"})
	s.write("before") // There is a connection now.
	s.awaitChanges("before", 1)
	// On a busy machine there may be one before ours.
	resyncs, stalled := s.resyncs(), s.agent.Metric(stalls)
	began := time.Now()
	s.agent.Freeze()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { s.write(fmt.Sprintf("during-%d", i)) })
	}
	all.Wait()
	s.agent.Thaw()
	s.write("after")
	s.awaitChanges("after", 1)
	s.awaitResyncs(resyncs + 1)
	seen := 0
	for i := range writers {
		if len(s.changes(fmt.Sprintf("during-%d", i))) > 0 {
			seen++
		}
	}
	t.Logf("stopped for %v: of %d writes, the agent saw %d; %v handshakes failed", time.Since(began), writers,
		seen, s.agent.Metric(failures))
	if seen == writers {
		t.Error("the agent saw all writes, so this test does not need the resync")
	}
	lab.Eventually(t, patience, "the stall is counted", func() bool { return s.agent.Metric(stalls) > stalled })
}
