package coretest

import (
	"cmp"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// TestForwarder checks the contract of [core.Forwarder]. Each check gets its own harness. The
// batches claim the runtime "runtime-1". A forwarder may cut a batch ([core.ErrNotSent]): the suite
// sends the rest again. If Forward ignores the end of its context, the suite skips the other
// checks.
//
// newForwarder makes a forwarder with a new, real far end. The far end decodes each request and
// calls farEnd.Forward with the context of the request, the manager and the batch that arrived. It
// translates the result into answers of its transport:
//
//   - nil acknowledges the request,
//   - [core.ErrTooLarge] refuses the request because of its size (413 in HTTP),
//   - any other error that is [core.IsPermanent] refuses the request permanently (400),
//   - [core.ErrUnauthenticated] and [core.ErrForbidden] refuse the sender (401, 403),
//   - [core.ErrUnknownManager] means that the manager is not served here (404),
//   - [core.ErrNotReady] refuses the request temporarily (503),
//   - [core.EventErrors] names the events that failed, if a request carries several,
//   - [core.RetryAfter] of an error is the wait that the far end requests.
//
// newForwarder stops everything that it starts with t.Cleanup.
func TestForwarder(
	t *testing.T, newForwarder func(t *testing.T, farEnd *Recorder) ForwarderHarness, opts ForwarderOptions,
) {
	t.Helper()

	const patience = time.Minute
	opts.Patience = cmp.Or(opts.Patience, patience)

	hangs := false
	for _, c := range forwarderChecks() {
		t.Run(c.rule, func(t *testing.T) {
			farEnd := &Recorder{}
			s := &forwarderSuite{ForwarderHarness: newForwarder(t, farEnd), t: t, farEnd: farEnd, opts: opts}
			defer func() { hangs = s.hangs.Load() }()
			c.check(s)
		})

		if hangs {
			t.Fatal("Forward ignores the end of its context: the other checks are skipped")
		}
	}
}

type forwarderCheck struct {
	rule  string
	check func(s *forwarderSuite)
}

func forwarderChecks() []forwarderCheck {
	type suite = forwarderSuite
	ends := func(after time.Duration) func(*suite) { return func(s *suite) { s.testDeadline(after) } }
	sends := func(batch core.Batch) func(*suite) { return func(s *suite) { s.roundTrip(batch) } }
	of := func(want Refusal) func(*suite) { return func(s *suite) { s.wantRefusal(want, false) } }
	ofAll := func(want Refusal) func(*suite) { return func(s *suite) { s.wantRefusal(want, true) } }
	gap := numbered(sampleEvents(0, 3)...)
	gap.Events[2].Sequence = 1 << 60 // A gap is for the receiver to see.

	return []forwarderCheck{
		{"context", ends(0)},
		{"context", ends(100 * time.Millisecond)},
		{"empty", (*suite).testEmpty},
		{"content", (*suite).testEvents},
		{"resync", sends(numbered(core.WatchEvent{Resync: true, Owner: sampleEvent(0).Owner}))},
		{"resync", (*suite).testResyncOfRuntime},
		{"claim", sends(numbered(sampleEvents(0, 2)...))},
		{"numbers", sends(gap)},
		{"heartbeat", sends(beating(numbered()))},
		{"heartbeat", sends(beating(numbered(sampleEvents(0, 2)...)))},
		{"order", sends(numbered(sampleEvents(0, 500)...))}, // As many as an agent sends.
		{"concurrent", (*suite).testConcurrent},
		{"concurrent", (*suite).testSlowManager},
		{"batch", (*suite).testBatch},
		{"permanent", of(Refusal{Permanent: true, Label: "malformed"})},
		{"too-large", (*suite).testTooLarge},
		{"refused-sender", ofAll(Refusal{Label: "unauthenticated", Cause: core.ErrUnauthenticated})},
		{"refused-sender", of(Refusal{Label: "forbidden", Cause: core.ErrForbidden})},
		{"unknown-manager", ofAll(Refusal{Label: "unknown_manager", Cause: core.ErrUnknownManager})},
		{"not-ready", ofAll(Refusal{Label: "not_ready", Cause: core.ErrNotReady, After: advice})},
		{"unreachable", (*suite).testUnreachable},
		{"partial", (*suite).testRefusedEvents},
		{"unsendable", (*suite).testUnsendable},
		{"recovers", (*suite).testRecovers},
	}
}
