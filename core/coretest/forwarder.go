package coretest

import (
	"cmp"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ForwarderHarness is a forwarder under test and its path to the far end.
type ForwarderHarness struct {
	// Forwarder is under test.
	Forwarder core.Forwarder
	// Disconnect makes the far end unreachable, for example by closing its listener and its
	// connections.
	Disconnect func()
}

// ForwarderOptions name the things that a transport cannot carry. The zero value means that it
// carries everything.
type ForwarderOptions struct {
	// WithoutOwner means that events arrive without their owner, as with contract v2.
	WithoutOwner bool
	// WithoutNumbers means that source, epoch, sequence, IDs and heartbeats do not arrive, as with
	// contracts v1 and v2. Batches with a heartbeat are sent all the same: the transport leaves it
	// out.
	WithoutNumbers bool
	// WithoutDetails means that operation, field, generation, time and trace do not arrive, as with
	// contracts v1 and v2.
	WithoutDetails bool
	// Unsendable is an event that the transport cannot carry, such as one without owner in contract
	// v1. Nil: none.
	Unsendable *core.WatchEvent
	// Source is the runtime that the batches claim. Default: "runtime-1".
	Source core.RuntimeID
	// Patience is the longest time that a prompt step may take on a busy machine. Default: 1 min.
	Patience time.Duration
}

func (o ForwarderOptions) withDefaults() ForwarderOptions {
	const patience = time.Minute
	o.Source = cmp.Or(o.Source, "runtime-1")
	o.Patience = cmp.Or(o.Patience, patience)
	return o
}

// TestForwarder checks the contract of [core.Forwarder]. Each check gets a harness of its own. A
// forwarder may cut a batch ([core.ErrNotSent]): the suite sends the rest again. When Forward
// ignores the end of its context, the other checks are left out.
//
// newForwarder makes a forwarder with a new and real far end. The far end decodes each request and
// calls farEnd.Forward with the context of the request, the manager and the batch that arrived. It
// answers in the words of its transport:
//
//   - nil acknowledges the request,
//   - an error that is [core.IsPermanent] refuses it for good (400 in HTTP),
//   - [core.ErrUnauthenticated] and [core.ErrForbidden] refuse the sender (401, 403),
//   - [core.ErrUnknownManager] means that the manager is not served here (404),
//   - [core.ErrNotReady] refuses for now (503),
//   - [core.EventErrors] names the events that failed, when a request carries several,
//   - [core.RetryAfter] of an error is the wait that the far end asks for.
//
// newForwarder stops everything that it starts with t.Cleanup.
func TestForwarder(
	t *testing.T, newForwarder func(t *testing.T, farEnd *Recorder) ForwarderHarness, opts ForwarderOptions,
) {
	t.Helper()
	opts = opts.withDefaults()
	hangs := false
	for _, c := range forwarderChecks() {
		t.Run(c.rule, func(t *testing.T) {
			s := newForwarderSuite(t, newForwarder, opts)
			defer func() { hangs = s.hangs.Load() }()
			c.check(s)
		})
		if hangs {
			t.Fatal("Forward ignores the end of its context: the other checks are left out")
		}
	}
}

// forwarderCheck checks a rule of internal/conformance.
type forwarderCheck struct {
	rule  string
	check func(s *forwarderSuite)
}

func forwarderChecks() []forwarderCheck {
	type suite = forwarderSuite
	of := func(want Refusal) func(*suite) { return func(s *suite) { s.refused(want) } }
	ofAll := func(want Refusal) func(*suite) { return func(s *suite) { s.refusedAll(want) } }
	return []forwarderCheck{
		{"context", (*suite).testEndedBefore},
		{"context", (*suite).testCancelledMeanwhile},
		{"context", (*suite).testDeadline},
		{"empty", (*suite).testEmpty},
		{"content", (*suite).testEvents},
		{"resync", (*suite).testResync},
		{"content", (*suite).testOwner},
		{"content", (*suite).testDetails},
		{"claim", (*suite).testClaim},
		{"numbers", (*suite).testNumbers},
		{"heartbeat", (*suite).testHeartbeat},
		{"order", (*suite).testMany},
		{"concurrent", (*suite).testConcurrent},
		{"concurrent", (*suite).testSlowManager},
		{"batch", (*suite).testUnchanged},
		{"batch", (*suite).testNotKept},
		{"permanent", of(Refusal{Permanent: true, Label: "malformed"})},
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
