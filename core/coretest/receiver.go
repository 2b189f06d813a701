package coretest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// ReceiverParts are the parts of a receiver under test.
type ReceiverParts struct {
	Verifier core.Verifier
	Handlers map[core.Manager]core.Handler
	Fleet    *fleet.Fleet
}

// ReceiverOptions are the optional settings of [TestReceiver].
type ReceiverOptions struct {
	// Patience bounds each call of Forward, and the wait for the batches that a transport keeps.
	// Default: 30 s.
	Patience time.Duration
}

// TestReceiver checks the rules for every receiver of batches, with any transport. It checks the
// side that each failure belongs to, and the events that reach handlers and fleet. It also checks
// that a loud runtime has a share only. A forwarder may also return nil for a batch that its
// transport keeps, and delivers again.
//
// newReceiver starts a receiver until the test ends, with the default shares. Its result returns a
// forwarder of a runtime to it. The receiver verifies that the runtime is the sender.
func TestReceiver(
	t *testing.T, newReceiver func(t *testing.T, parts ReceiverParts) func(runtime core.RuntimeID) core.Forwarder,
	opts ReceiverOptions,
) {
	t.Helper()
	for _, c := range receiverChecks() {
		t.Run(c.rule, func(t *testing.T) {
			operator := &Recorder{}
			parts, err := ScriptedParts(operator)
			if err != nil {
				t.Fatal(err)
			}
			remote := RemoteReceiver{Sender: newReceiver(t, parts), Operator: operator, fleet: parts.Fleet}
			c.run(t, remote, opts)
		})
	}
}

// T judges a check: it is a [testing.T], or part of a program. Fatal and Fatalf end the goroutine.
type T interface {
	Context() context.Context
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// RemoteReceiver is a receiver that follows the script of [ScriptedParts], in any process.
type RemoteReceiver struct {
	// Sender returns a forwarder of a runtime.
	Sender func(runtime core.RuntimeID) core.Forwarder
	// Operator records the deliveries that the operator enqueued. Nil: they cannot be seen.
	Operator *Recorder

	fleet *fleet.Fleet
}

// CheckReceiver calls run with each check of [TestReceiver], and the rule of
// internal/conformance that it checks.
func CheckReceiver(remote RemoteReceiver, opts ReceiverOptions, run func(rule string, check func(t T))) {
	for _, c := range receiverChecks() {
		run(c.rule, func(t T) { c.run(t, remote, opts) })
	}
}

// receiverCheck has a runtime of its own, so that checks of one receiver do not meet.
type receiverCheck struct {
	rule    string
	runtime core.RuntimeID
	check   func(s *receiverSuite)
}

func receiverChecks() []receiverCheck {
	type suite = receiverSuite
	return []receiverCheck{
		{"accepted", "runtime-1", (*suite).testAccepted},
		{"not-ready", coldRuntime, func(s *suite) { s.testRefused(core.ErrNotReady) }},
		{"forbidden-sender", forbiddenRuntime, func(s *suite) { s.testRefused(core.ErrForbidden) }},
		{"partial", "runtime-4", (*suite).testForbiddenEvent},
		{"all-refused", "runtime-5", (*suite).testForbiddenChanges},
		{"partial", "runtime-6", func(s *suite) { s.testFailedEvent("unverifiable") }},
		{"partial", "runtime-7", func(s *suite) { s.testFailedEvent("unhandled") }},
		{"partial", "runtime-8", func(s *suite) { s.testFailedEvent("failing") }},
		{"operator-not-ready", "runtime-9", (*suite).testHandlerNotReady},
		{"claim", "runtime-10", (*suite).testClaim},
		{"heartbeat", "runtime-11", (*suite).testHeartbeat},
		{"forbidden-sender", forbiddenRuntime, (*suite).testRefusedHeartbeat},
		{"share", "runtime-13", (*suite).testLoudRuntime},
	}
}

const (
	receiverManager core.Manager = "my-operator"
	// defaultReceiverPatience is for a busy machine.
	defaultReceiverPatience = 30 * time.Second
)

type receiverSuite struct {
	RemoteReceiver

	t       T
	opts    ReceiverOptions
	runtime core.RuntimeID
}

func (c *receiverCheck) run(t T, remote RemoteReceiver, opts ReceiverOptions) {
	opts.Patience = cmp.Or(opts.Patience, defaultReceiverPatience)
	c.check(&receiverSuite{RemoteReceiver: remote, t: t, opts: opts, runtime: c.runtime})
}

func (s *receiverSuite) send(runtime core.RuntimeID, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	return s.Sender(runtime).Forward(ctx, receiverManager, batch)
}

// batchOf returns a numbered batch of changes of objects.
func batchOf(names ...string) core.Batch {
	events := make([]core.WatchEvent, len(names))
	for i, name := range names {
		events[i] = Changed("Sample", "default", name)
	}
	return numbered(events...)
}

// handled returns the names of the objects that the operator accepted from a runtime.
func handled(calls []Call, runtime core.RuntimeID) (names []string) {
	for i := range calls {
		for _, event := range calls[i].acknowledged() {
			if calls[i].Runtime == runtime && !event.Resync {
				names = append(names, event.Watched.Name)
			}
		}
	}
	return names
}

// accepted waits until the operator has accepted objects of a runtime as expected, and returns
// them.
func (s *receiverSuite) accepted(runtime core.RuntimeID, expected func(names []string) bool) []string {
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	_ = s.Operator.wait(ctx, func(calls []Call) bool { return expected(handled(calls, runtime)) })
	return handled(s.Operator.Calls(), runtime)
}

// wantHandled fails the test if the operator accepted others than these objects.
func (s *receiverSuite) wantHandled(runtime core.RuntimeID, want ...string) {
	s.t.Helper()
	if s.Operator == nil {
		return
	}
	got := s.accepted(runtime, func(names []string) bool { return len(names) >= len(want) })
	if !slices.Equal(got, want) {
		s.t.Errorf("the handler accepted %v of %s, want %v", got, runtime, want)
	}
}

// wantBeside fails the test unless the operator accepted these objects, and maybe others.
func (s *receiverSuite) wantBeside(want ...string) {
	s.t.Helper()
	if s.Operator == nil {
		return
	}
	all := func(names []string) bool {
		return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(names, name) })
	}
	if got := s.accepted(s.runtime, all); !all(got) {
		s.t.Errorf("the handler accepted %v, want at least %v", got, want)
	}
}

// wantWhole checks that an error is of the whole batch.
func (s *receiverSuite) wantWhole(err, class error) {
	s.t.Helper()
	if _, partial := errors.AsType[core.EventErrors](err); partial {
		s.t.Errorf("the receiver names events: %v, want one error for the batch", err)
	}
	if !errors.Is(err, class) {
		s.t.Errorf("the receiver refuses with %v, want %v", err, class)
	}
}

// wantEvents checks that those events failed, and that each may succeed later.
func (s *receiverSuite) wantEvents(err, class error, want ...int) {
	s.t.Helper()
	some, _ := errors.AsType[core.EventErrors](err)
	if len(some) != len(want) {
		s.t.Errorf("the receiver refuses events %v (%v), want %v", some, err, want)
		return
	}
	for _, i := range want {
		switch {
		case some[i] == nil || core.IsPermanent(some[i]):
			s.t.Errorf("the receiver refuses event %d with %v, want an error that is not permanent", i, some[i])
		case class != nil && !errors.Is(some[i], class):
			s.t.Errorf("the receiver refuses event %d with %v, want %v", i, some[i], class)
		}
	}
}

// isKnown reports whether the fleet has seen a heartbeat of a runtime.
func (s *receiverSuite) isKnown(runtime core.RuntimeID) bool {
	return s.fleet.Get(runtime, receiverManager).State != fleet.Unknown
}

func (s *receiverSuite) testAccepted() {
	if err := s.send(s.runtime, batchOf("a", "b", "c")); err != nil {
		s.t.Fatalf("Forward = %v, want nil", err)
	}
	s.wantHandled(s.runtime, "a", "b", "c")
}

func (s *receiverSuite) testRefused(class error) {
	s.wantWhole(s.send(s.runtime, batchOf("a", "b", "c")), class)
	s.wantHandled(s.runtime)
}

func (s *receiverSuite) testForbiddenEvent() {
	s.wantEvents(s.send(s.runtime, batchOf("a", forbiddenName, "c")), core.ErrForbidden, 1)
	s.wantHandled(s.runtime, "a", "c")
}

func (s *receiverSuite) testForbiddenChanges() {
	s.wantEvents(s.send(s.runtime, batchOf(forbiddenName, forbiddenName+"-too")), core.ErrForbidden, 0, 1)
	s.wantHandled(s.runtime)
}

// testFailedEvent expects the objects beside the one that fails.
func (s *receiverSuite) testFailedEvent(name string) {
	s.wantEvents(s.send(s.runtime, batchOf("a", name, "c")), nil, 1)
	s.wantBeside("a", "c")
}

// testHandlerNotReady lets a handler without a method Ready refuse once. Nothing may be lost, and
// no event is named.
func (s *receiverSuite) testHandlerNotReady() {
	err := s.send(s.runtime, batchOf(lateName))
	if err != nil {
		s.wantWhole(err, core.ErrNotReady)
		err = s.send(s.runtime, batchOf(lateName))
	}
	if err != nil {
		s.t.Fatalf("the handler is ready again, and Forward = %v", err)
	}
	s.wantBeside(lateName)
}

func (s *receiverSuite) testClaim() {
	batch := heartbeatOfA()
	batch.Source = "runtime-2"
	s.wantWhole(s.send(s.runtime, batch), core.ErrForbidden)
	for _, runtime := range []core.RuntimeID{"runtime-2", s.runtime} {
		s.wantHandled(runtime)
		if s.fleet != nil && s.isKnown(runtime) {
			s.t.Errorf("the fleet got the heartbeat as one of %s", runtime)
		}
	}
}

// heartbeatOfA returns a batch of an event and a heartbeat.
func heartbeatOfA() core.Batch {
	batch := batchOf("a")
	batch.Heartbeat = &core.Heartbeat{
		ID: "beat-1", Number: 1, Sequence: 1, Interval: time.Minute, Time: time.Now(), Canary: core.CanaryAlive,
	}
	return batch
}

func (s *receiverSuite) testHeartbeat() {
	if err := s.send(s.runtime, heartbeatOfA()); err != nil {
		s.t.Errorf("Forward = %v, want nil", err)
	}
	s.wantHandled(s.runtime, "a")
	if s.fleet != nil && !s.isKnown(s.runtime) {
		s.t.Error("the fleet did not get the heartbeat")
	}
}

func (s *receiverSuite) testRefusedHeartbeat() {
	s.wantWhole(s.send(s.runtime, heartbeatOfA()), core.ErrForbidden)
	if s.fleet != nil && s.isKnown(s.runtime) {
		s.t.Error("the fleet got the heartbeat of a sender that the verifier refuses")
	}
}

// testLoudRuntime sends more events than the share of a runtime at once. The refusal says when the
// share has room again.
func (s *receiverSuite) testLoudRuntime() {
	const batches, events = 8, 400
	names := make([]string, events)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}
	var refused error
	for n := 0; n < batches && refused == nil; n++ { // A later one might be taken, and begin a longer wait.
		refused = s.send("loud", batchOf(names...))
	}
	s.wantWhole(refused, core.ErrNotReady)
	wait := core.RetryAfter(refused)
	if err := s.send(s.runtime, batchOf("a")); err != nil {
		s.t.Errorf("another runtime is refused: %v", err)
	}
	s.wantHandled(s.runtime, "a")
	<-time.After(wait)
	if err := s.send("loud", batchOf("later")); err != nil {
		s.t.Errorf("refused after the wait of %v that was asked for: %v", wait, err)
	}
}
