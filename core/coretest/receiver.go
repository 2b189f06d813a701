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

// ReceiverOptions are the optional settings of [TestReceiver].
type ReceiverOptions struct {
	// Patience bounds each call of Forward, and the wait for the batches that a transport keeps.
	// Default: 30 s.
	Patience time.Duration
}

// TestReceiver checks the rules for every receiver of batches, with any transport. It checks to
// which side each failure is attributed, and which events reach the handlers and the fleet. It also
// checks that a loud runtime gets only its share. A forwarder may also return nil for a batch that
// its transport keeps and delivers again.
//
// newReceiver starts a receiver until the test ends, with the default shares. The function that it
// returns makes forwarders from a runtime to the receiver. The receiver verifies that the runtime
// is the sender.
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

// T receives the result of a check. It is a [testing.T] or part of a program. Fatalf ends the
// goroutine.
type T interface {
	Context() context.Context
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// RemoteReceiver is a receiver in any process that follows the script of [ScriptedParts].
type RemoteReceiver struct {
	// Sender returns a forwarder for a runtime.
	Sender func(runtime core.RuntimeID) core.Forwarder
	// Operator records the deliveries that the operator enqueued. Nil: the suite cannot see the
	// deliveries.
	Operator *Recorder

	fleet *fleet.Fleet
}

// CheckReceiver calls run with each check of [TestReceiver] and the rule of internal/conformance
// that the check covers.
func CheckReceiver(remote RemoteReceiver, opts ReceiverOptions, run func(rule string, check func(t T))) {
	for _, c := range receiverChecks() {
		run(c.rule, func(t T) { c.run(t, remote, opts) })
	}
}

// receiverCheck has its own runtime, so that checks of one receiver do not affect each other.
type receiverCheck struct {
	rule    string
	runtime core.RuntimeID
	objects []string
	// withHeartbeat adds a heartbeat, and claims another runtime as the source.
	withHeartbeat bool
	claims        core.RuntimeID
	// failed are the events that fail with class. Without them, class is the error of the batch.
	failed []int
	class  error
	// accepted are the objects that reach the operator in this order.
	accepted []string
	// again says that objects may come more than once, because others of their batch fail.
	again bool
	do    func(s *receiverSuite)
}

func receiverChecks() []receiverCheck {
	abc := []string{"a", "b", "c"}
	forbidden := []string{forbiddenName, forbiddenName + "-too"}
	partial := func(runtime core.RuntimeID, name string, class error) receiverCheck {
		return receiverCheck{
			rule: "partial", runtime: runtime, objects: []string{"a", name, "c"}, failed: []int{1}, class: class,
			accepted: []string{"a", "c"}, again: class == nil,
		}
	}

	return []receiverCheck{
		{rule: "accepted", runtime: "runtime-1", objects: abc, accepted: abc},
		{rule: "not-ready", runtime: coldRuntime, objects: abc, class: core.ErrNotReady},
		{
			rule: "forbidden-sender", runtime: forbiddenRuntime, objects: abc, withHeartbeat: true,
			class: core.ErrForbidden,
		},
		{
			rule: "claim", runtime: "runtime-10", objects: abc, withHeartbeat: true, claims: "runtime-2",
			class: core.ErrForbidden,
		},
		{rule: "heartbeat", runtime: "runtime-11", objects: abc, withHeartbeat: true, accepted: abc},
		partial("runtime-4", forbiddenName, core.ErrForbidden),
		partial("runtime-6", "unverifiable", nil),
		partial("runtime-7", "unhandled", nil),
		partial("runtime-8", "failing", nil),
		{rule: "all-refused", runtime: "runtime-5", objects: forbidden, failed: []int{0, 1}, class: core.ErrForbidden},
		{rule: "operator-not-ready", runtime: "runtime-9", do: (*receiverSuite).testHandlerNotReady},
		{rule: "share", runtime: "runtime-13", do: (*receiverSuite).testLoudRuntime},
	}
}

// defaultReceiverPatience is for a busy machine.
const defaultReceiverPatience = 30 * time.Second

type receiverSuite struct {
	RemoteReceiver

	t       T
	opts    ReceiverOptions
	runtime core.RuntimeID
}

func (c *receiverCheck) run(t T, remote RemoteReceiver, opts ReceiverOptions) {
	opts.Patience = cmp.Or(opts.Patience, defaultReceiverPatience)
	s := &receiverSuite{RemoteReceiver: remote, t: t, opts: opts, runtime: c.runtime}
	if c.do != nil {
		c.do(s)
		return
	}

	batch := batchOf(c.objects...)
	batch.Source = c.claims
	if c.withHeartbeat {
		batch.Heartbeat = &core.Heartbeat{
			ID: "beat-1", Number: 1, Sequence: uint64(len(c.objects)), Interval: time.Minute, Time: time.Now(),
			Canary: core.CanaryAlive,
		}
	}

	err := s.sendBatch(s.runtime, batch)
	s.wantRefused(err, c.class, c.failed...)
	s.wantAccepted(s.runtime, c.again, c.accepted...)

	if c.withHeartbeat {
		s.wantKnown(s.runtime, c.class == nil)
	}
	if c.claims != "" {
		s.wantAccepted(c.claims, false)
		s.wantKnown(c.claims, false)
	}
}

func (s *receiverSuite) sendBatch(runtime core.RuntimeID, batch core.Batch) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	return s.Sender(runtime).Forward(ctx, receiverManager, batch)
}

func batchOf(names ...string) core.Batch {
	events := make([]core.WatchEvent, len(names))
	for i, name := range names {
		events[i] = Changed("Sample", "default", name)
	}

	batch := numbered(events...)
	batch.Source = ""
	return batch
}

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

// wantAccepted compares in order, unless events may come again.
func (s *receiverSuite) wantAccepted(runtime core.RuntimeID, again bool, want ...string) {
	s.t.Helper()

	if s.Operator == nil {
		return
	}

	ctx, cancel := context.WithTimeout(s.t.Context(), s.opts.Patience)
	defer cancel()
	misses := func(got []string) bool {
		return slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(got, name) })
	}
	_ = s.Operator.waitUntil(ctx, func(calls []Call) bool { return !misses(handled(calls, runtime)) })
	got := handled(s.Operator.Calls(), runtime)

	isOther := !again && !slices.Equal(got, want)
	if misses(got) || isOther {
		s.t.Errorf("the handler accepted %v of %s, want %v", got, runtime, want)
	}
}

// wantRefused also checks that each event may succeed later.
func (s *receiverSuite) wantRefused(err, class error, want ...int) {
	s.t.Helper()

	some, _ := errors.AsType[core.EventErrors](err)
	isOther := len(want) == 0 && !errors.Is(err, class)
	if len(some) != len(want) || isOther {
		s.t.Errorf("the receiver refuses %d events by name, with %v, want %v with %v", len(some), err, want, class)
	}

	for _, i := range want {
		got := some[i]
		isOther := class != nil && !errors.Is(got, class)
		if got == nil || core.IsPermanent(got) || isOther {
			s.t.Errorf("the receiver refuses event %d with %v, want %v, not permanent", i, got, class)
		}
	}
}

func (s *receiverSuite) wantKnown(runtime core.RuntimeID, want bool) {
	s.t.Helper()

	if s.fleet == nil {
		return
	}
	if got := s.fleet.Get(runtime, receiverManager).State != fleet.Unknown; got != want {
		s.t.Errorf("the fleet knows a heartbeat of %s: %t, want %t", runtime, got, want)
	}
}

// testHandlerNotReady lets a handler refuse once. Nothing may be lost, and no event is named.
func (s *receiverSuite) testHandlerNotReady() {
	err := s.sendBatch(s.runtime, batchOf(lateName))
	if err != nil {
		s.wantRefused(err, core.ErrNotReady)
		err = s.sendBatch(s.runtime, batchOf(lateName))
	}

	if err != nil {
		s.t.Fatalf("the handler is ready again, and Forward = %v", err)
	}
	s.wantAccepted(s.runtime, true, lateName)
}

func (s *receiverSuite) testLoudRuntime() {
	const batches, events = 8, 400
	names := make([]string, events)
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
	}

	var refused error
	for n := 0; n < batches && refused == nil; n++ { // A later one might be taken, and begin a longer wait.
		refused = s.sendBatch("loud", batchOf(names...))
	}

	s.wantRefused(refused, core.ErrNotReady)
	wait := core.RetryAfter(refused)
	if err := s.sendBatch(s.runtime, batchOf("a")); err != nil {
		s.t.Errorf("another runtime is refused: %v", err)
	}

	s.wantAccepted(s.runtime, false, "a")
	<-time.After(wait)
	if err := s.sendBatch("loud", batchOf("later")); err != nil {
		s.t.Errorf("refused after the wait of %v that was asked for: %v", wait, err)
	}
}
