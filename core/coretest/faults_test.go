package coretest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

// faultVariable names the fault that a child process of this test has.
const faultVariable = "CORETEST_FAULT"

// forward is the signature of a forwarder, and middle changes what one does.
type (
	forward = core.ForwarderFunc
	middle  = func(next forward) forward
)

// forwarderFault is a way to get the contract wrong, and the check that must notice.
type forwarderFault struct {
	check  string
	middle middle
}

func forwarderFaults() map[string]forwarderFault {
	return map[string]forwarderFault{
		"forgets":            {"what_is_acknowledged_has_arrived", forgets},
		"drops the last":     {"many_events_arrive", dropsTheLast},
		"one manager only":   {"concurrent_calls_arrive", oneManager},
		"changes events":     {"events_are_neither_changed_nor_kept", changesEvents},
		"calls for nothing":  {"nothing_to_forward", callsForNothing},
		"hides the context":  {"cancelled_before", hidesErrors},
		"ignores the end":    {"cancelled_while_the_far_end_hangs", ignoresTheEnd},
		"misses deadlines":   {"deadline_while_the_far_end_hangs", ignoresTheEnd},
		"all is permanent":   {"far_end_unreachable", reclassifies(true)},
		"nothing is":         {"permanent_refusal", reclassifies(false)},
		"forgets the cause":  {"forbidden", reclassifies(false)},
		"forgets the sender": {"unauthenticated", reclassifies(false)},
		"loses the advice":   {"not_ready,_with_advice_when_to_come_back", reclassifies(false)},
		"sits the wait out":  {"not_ready,_with_advice_when_to_come_back", sitsItOut},
		"names nothing":      {"permanent_refusal", hidesErrors},
		"condemns all":       {"one_refused_event_does_not_condemn_the_others", reclassifies(true)},
		"breaks for ever":    {"works_again_after_failures", breaksForEver},
	}
}

func forgets(forward) forward {
	return func(context.Context, core.Manager, []core.WatchEvent) error { return nil }
}

func dropsTheLast(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		return next(ctx, manager, events[:min(len(events), 20)])
	}
}

func oneManager(next forward) forward {
	return func(ctx context.Context, _ core.Manager, events []core.WatchEvent) error {
		return next(ctx, "manager-a", events)
	}
}

func changesEvents(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		err := next(ctx, manager, events)

		for i := range events {
			events[i].Sequence++
		}

		return err
	}
}

func callsForNothing(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		if len(events) == 0 {
			events = make([]core.WatchEvent, 1)
		}

		return next(ctx, manager, events)
	}
}

func hidesErrors(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		if next(ctx, manager, events) != nil {
			return errors.New("something failed")
		}

		return nil
	}
}

func ignoresTheEnd(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		return next(context.WithoutCancel(ctx), manager, events)
	}
}

func reclassifies(permanent bool) middle {
	return func(next forward) forward {
		return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
			if next(ctx, manager, events) != nil {
				return &coretest.Refusal{Permanent: permanent, Label: "failed"}
			}

			return nil
		}
	}
}

func sitsItOut(next forward) forward {
	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		err := next(ctx, manager, events)
		if core.RetryAfter(err) > 0 {
			<-ctx.Done()
		}

		return err
	}
}

func breaksForEver(next forward) forward {
	var broken atomic.Bool

	return func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
		err := next(ctx, manager, events)
		if err != nil {
			broken.Store(true)
		}

		if broken.Load() {
			return core.ErrNotReady
		}

		return err
	}
}

// verifierFault is a way to get the contract wrong, and the check that must notice.
type verifierFault struct {
	check  string
	verify core.VerifierFunc
}

func verifierFaults() map[string]verifierFault {
	right := domains{"one": "one.example", "two": "two.example"}

	return map[string]verifierFault{
		"lets all pass": {"another_owner", func(context.Context, core.Peer, *core.WatchEvent) error { return nil }},
		"refuses all": {"its_own_owner", func(context.Context, core.Peer, *core.WatchEvent) error {
			return core.ErrForbidden
		}},
		"lets nobody pass, too": {"its_own_owner,_by_nobody", func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
			p.ID, p.DNSNames = "x", append(p.DNSNames, "one.example")

			return right.Verify(ctx, p, e)
		}},
		"changes the event": {"its_own_owner", func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
			err := right.Verify(ctx, p, e)
			e.Source = p.ID

			return err
		}},
		"changes the peer": {"its_own_owner", func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
			p.DNSNames[0] = "x"

			return right.Verify(ctx, p, e)
		}},
		"two verdicts": {"another_owner", func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
			if err := right.Verify(ctx, p, e); err != nil {
				return errors.Join(err, core.ErrNotReady)
			}

			return nil
		}},
		"gives up for good": {"its_own_owner,_after_the_end_of_the_context", func(ctx context.Context, p core.Peer, e *core.WatchEvent) error {
			if ctx.Err() != nil {
				return core.ErrForbidden
			}

			return right.Verify(ctx, p, e)
		}},
	}
}

// A suite that can not fail proves nothing: each fault must be found, by the check that is about it.
func TestSuitesFindFaults(t *testing.T) {
	t.Parallel()

	for name, fault := range forwarderFaults() {
		t.Run(name, func(t *testing.T) { t.Parallel(); checkFound(t, "TestFaultyForwarder", name, fault.check) })
	}

	for name, fault := range verifierFaults() {
		t.Run(name, func(t *testing.T) { t.Parallel(); checkFound(t, "TestFaultyVerifier", name, fault.check) })
	}
}

func checkFound(t *testing.T, suite, fault, check string) {
	t.Helper()

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+suite+"$/^suite$/^"+check+"$")
	child.Env = append(os.Environ(), faultVariable+"="+fault)

	output, err := child.CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != 1 {
		t.Errorf("a forwarder or verifier that %q passes %q: %v\n%s", fault, check, err, output)
	}

	if want := "--- FAIL: " + suite + "/suite/" + check; !strings.Contains(string(output), want) {
		t.Errorf("want %q in the output of the fault %q:\n%s", want, fault, output)
	}
}

func TestFaultyForwarder(t *testing.T) {
	fault, ok := forwarderFaults()[os.Getenv(faultVariable)]
	if !ok {
		t.Skip("is run by TestSuitesFindFaults")
	}

	t.Run("suite", func(t *testing.T) {
		coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
			memory := coretest.NewMemory("runtime-1", farEnd)

			return coretest.ForwarderHarness{
				Forwarder:  fault.middle(memory.Forward),
				Disconnect: func() { memory.SetDown(true) },
			}
		}, coretest.ForwarderOptions{})
	})
}

func TestFaultyVerifier(t *testing.T) {
	fault, ok := verifierFaults()[os.Getenv(faultVariable)]
	if !ok {
		t.Skip("is run by TestSuitesFindFaults")
	}

	t.Run("suite", func(t *testing.T) {
		coretest.TestVerifier(t, func(*testing.T) core.Verifier { return fault.verify }, verifierCases()...)
	})
}
