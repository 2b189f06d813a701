package intake

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	manager            = core.Manager("lifecycle")
	runtimeA, runtimeB = core.RuntimeID("runtime-a"), core.RuntimeID("runtime-b")
)

// refusal returns an error of that class and with that reason.
func refusal(class error, reason string) error {
	return errors.Join(&reasons.Error{Text: "inside", Label: reason}, class)
}

// verifies returns a verifier of events and of senders.
func verifies(event, sender func() error) core.Verifier {
	return core.VerifierFunc(func(_ context.Context, _ core.Peer, e *core.WatchEvent) error {
		if e.Resync {
			return sender()
		}
		return event()
	})
}

func is(err error) func() error { return func() error { return err } }

func panics() error { panic("inside") }

// fails returns a handler that fails for some objects, as their names say. Without ready it has no
// method Ready.
func fails(by func(name string) error, ready func() error) core.Handler {
	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error { return by(d.Event.Watched.Name) })
	if ready == nil {
		return handler
	}
	return electable{handler, ready}
}

type electable struct {
	core.HandlerFunc

	ready func() error
}

func (e electable) Ready() error { return e.ready() }

func takes(string) error { return nil }

// events returns a batch with that many events from a number on. Their objects have the names of
// their indexes.
func events(count int, from uint64) core.Batch {
	batch := core.Batch{Epoch: "e"}
	for i := range count {
		batch.Events = append(batch.Events, core.Numbered{
			ID: strconv.FormatUint(from+uint64(i), 10), Sequence: from + uint64(i),
			WatchEvent: core.WatchEvent{Watched: types.NamespacedName{Name: strconv.Itoa(i)}},
		})
	}

	return batch
}

// beating adds a heartbeat to a batch.
func beating(batch core.Batch) core.Batch {
	batch.Epoch = "e"
	batch.Heartbeat = &core.Heartbeat{
		ID: "b", Number: 1, Interval: time.Minute, Sequence: uint64(len(batch.Events)), Canary: core.CanaryAlive,
	}
	return batch
}

func newIntake(t *testing.T, verifier core.Verifier, handler core.Handler, opts Options) *Intake {
	t.Helper()

	in, err := New(verifier, map[core.Manager]core.Handler{manager: handler}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func newFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	f, err := fleet.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func request(runtime core.RuntimeID, batch core.Batch) *Request {
	return &Request{Peer: core.Peer{ID: runtime}, Manager: manager, Batch: batch}
}

// verdictOf is the verdict that an error of Receive was made of.
func verdictOf(err error) (v verdict) {
	v.Whole, _ = errors.AsType[*Failure](err)
	failed, _ := errors.AsType[core.EventErrors](err)
	for i, err := range failed {
		v.addFailure(i, failureOf(err))
	}

	return v
}

func failureOf(err error) *Failure {
	f, _ := errors.AsType[*Failure](err)
	return f
}

// labels returns the reasons of failures.
func labels(failed map[int]*Failure) map[int]string {
	found := map[int]string{}
	for i, f := range failed {
		found[i] = f.Reason()
	}
	return found
}

// TestVerdicts has each way in which a batch can fail: whose the failure is, and what the fleet
// observes. Events that are refused individually are named, and all others of the runtime go on.
func TestVerdicts(t *testing.T) {
	t.Parallel()

	var (
		missing    = refusal(core.ErrForbidden, reasons.OwnerMissing)
		stranger   = refusal(core.ErrForbidden, reasons.SANMismatch)
		revoked    = refusal(core.ErrUnauthenticated, "revoked")
		all        = verifies(is(nil), is(nil))
		broken     = func(string) error { return errors.New("inside") }
		follower   = is(core.ErrNotReady)
		notLeading = func(name string) error { return refusal(core.ErrNotReady, "at_"+name) }
		unready    = func(name string) error {
			if name == "2" {
				return core.ErrNotReady
			}
			return nil
		}
		each = func(count int, reason string) map[int]string {
			named := map[int]string{}
			for i := range count {
				named[i] = reason
			}
			return named
		}
	)

	type want struct {
		// whole is the reason of the failure of the batch, fault its side, and class what it wraps.
		whole  string
		fault  Fault
		class  error
		failed map[int]string
		// heard and beat are what the fleet observes.
		heard, beat bool
	}

	taken := func(heard, beat bool, failed map[int]string) want {
		return want{failed: failed, heard: heard, beat: beat}
	}
	whole := func(reason string, fault Fault, class error) want {
		return want{whole: reason, fault: fault, class: class}
	}
	taking := fails(takes, nil)
	missed := verifies(is(missing), is(nil))

	tests := []struct {
		name     string
		verifier core.Verifier
		handler  core.Handler
		batch    core.Batch
		want     want
	}{
		{"taken", all, taking, beating(events(2, 1)), taken(true, true, nil)},
		{"events are refused", missed, taking, beating(events(2, 1)), taken(true, true, each(2, reasons.OwnerMissing))},
		{"all events are refused", missed, taking, events(2, 1), taken(true, false, each(2, reasons.OwnerMissing))},
		{
			"all are refused, and the sender is not known yet", verifies(is(missing), is(core.ErrNotReady)), taking,
			events(2, 1), taken(false, false, each(2, reasons.OwnerMissing)),
		},
		{
			"heartbeat is refused", verifies(is(nil), is(missing)), taking,
			beating(events(2, 1)), taken(true, false, map[int]string{2: reasons.OwnerMissing}),
		},
		{
			"sender is forbidden", verifies(is(missing), is(stranger)), taking,
			beating(events(2, 1)), whole(reasons.SANMismatch, faultOfSender, core.ErrForbidden),
		},
		{
			"sender is revoked", verifies(is(revoked), is(revoked)), taking,
			events(2, 1), whole("revoked", faultOfSender, core.ErrUnauthenticated),
		},
		{
			"verifier is not ready", verifies(is(core.ErrNotReady), is(core.ErrNotReady)), taking,
			events(2, 1), whole(reasons.NotReady, faultOfSender, core.ErrNotReady),
		},
		{"verifier panics for events", verifies(panics, is(nil)), taking, events(1, 1), taken(true, false, each(1, reasons.Panic))},
		{
			"verifier panics for the sender", verifies(is(missing), panics), taking,
			events(1, 1), taken(false, false, each(1, reasons.OwnerMissing)),
		},
		{"handler fails", all, fails(broken, nil), events(2, 1), taken(true, false, each(2, "other"))},
		{
			"handler fails, and the sender is forbidden", verifies(is(nil), is(stranger)), fails(broken, nil),
			events(2, 1), taken(true, false, each(2, "other")),
		},
		{
			"handler panics", all, fails(func(string) error { return panics() }, nil),
			beating(events(1, 1)), taken(true, true, each(1, reasons.Panic)),
		},
		{"handler is not ready", all, fails(notLeading, nil), events(20, 1), whole("at_0", FaultOfReplica, core.ErrNotReady)},
		{
			"handler leads, and does not know one object", all, fails(unready, is(nil)),
			events(5, 1), taken(true, false, map[int]string{2: reasons.NotReady}),
		},
		{"replica follows", all, fails(unready, follower), events(5, 1), whole(reasons.NotReady, FaultOfReplica, core.ErrNotReady)},
		{
			"replica follows, and gets a heartbeat", all, fails(takes, follower),
			beating(core.Batch{}), whole(reasons.NotReady, FaultOfReplica, core.ErrNotReady),
		},
		// The leader would miss the number, and the next heartbeat would show a gap.
		{
			"replica follows, and events are refused", missed, fails(takes, follower),
			events(2, 1), whole(reasons.NotReady, FaultOfReplica, core.ErrNotReady),
		},
		{
			"replica follows, and the sender is forbidden", verifies(is(stranger), is(stranger)), fails(takes, follower),
			events(2, 1), whole(reasons.SANMismatch, faultOfSender, core.ErrForbidden),
		},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			watched := newFleet(t, fleet.Options{})
			in := newIntake(t, test.verifier, test.handler, Options{Fleet: watched})
			v := verdictOf(in.Receive(t.Context(), request(runtimeA, test.batch)))
			switch {
			case test.want.whole == "" && v.Whole != nil, test.want.whole != "" && v.Whole == nil:
				t.Errorf("the batch failed with %v, want %q", v.Whole, test.want.whole)
			case v.Whole == nil:
				if diff := cmp.Diff(test.want.failed, labels(v.Failed)); diff != "" && len(test.want.failed)+len(v.Failed) > 0 {
					t.Errorf("elements that failed (-want +have):\n%s", diff)
				}
			case v.Whole.Reason() != test.want.whole || v.Whole.Fault != test.want.fault || !errors.Is(v.err(), test.want.class):
				t.Errorf("the batch failed with %q of side %d: %v, want %q of side %d: %v",
					v.Whole.Reason(), v.Whole.Fault, v.err(), test.want.whole, test.want.fault, test.want.class)
			}

			s := watched.Get(runtimeA, manager)
			beat := len(s.Replicas) == 1 && s.Replicas[0].Heartbeat != nil
			if heard := !s.LastSeen.IsZero(); heard != test.want.heard || beat != test.want.beat {
				t.Errorf("observed %v, with heartbeat %v, want %v and %v", heard, beat, test.want.heard, test.want.beat)
			}

			if last := uint64(len(test.batch.Events)); test.want.heard && s.Replicas[0].Sequence != last {
				t.Errorf("observed number %d, want %d: the next heartbeat would show a gap", s.Replicas[0].Sequence, last)
			}
		})
	}
}

// With contract v1 the owner of an event names the runtime: no event speaks for another one.
func TestOwnersAreJudgedAlone(t *testing.T) {
	t.Parallel()

	missing := refusal(core.ErrForbidden, reasons.OwnerMissing)
	in := newIntake(t, verifies(is(missing), is(missing)), fails(takes, nil), Options{})
	r := request(runtimeA, events(1, 1))
	r.Contract = contract.V1
	if v := verdictOf(in.Receive(t.Context(), r)); v.Whole != nil || v.Failed[0] == nil {
		t.Errorf("the batch failed with %v, want that of its event", v.Whole)
	}
}

// A batch for a manager that is not served here, or with another runtime as its source, reaches no
// handler.
func TestWholeBatchesAreRefused(t *testing.T) {
	t.Parallel()

	in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, nil), Options{})
	elsewhere := request(runtimeA, events(1, 1))
	claims := request(runtimeA, events(1, 1))
	elsewhere.Manager = "elsewhere"
	claims.Batch.Source = runtimeB

	for _, test := range []struct {
		request *Request
		fault   Fault
		class   error
		text    string
	}{
		{elsewhere, faultOfIntake, core.ErrUnknownManager, "elsewhere"},
		{claims, faultOfSender, core.ErrForbidden, "runtime-b"},
	} {
		f := verdictOf(in.Receive(t.Context(), test.request)).Whole
		if f == nil || f.Fault != test.fault || !errors.Is(f, test.class) || !strings.Contains(f.Error(), test.text) {
			t.Errorf("failure %v, want %v about %s", f, test.class, test.text)
		}
	}

	if in.Serves("elsewhere") || !in.Serves(manager) {
		t.Error("the intake does not know which managers it serves")
	}
}

type waitError time.Duration

func (waitError) Error() string { return "inside" }

func (w waitError) RetryAfter() time.Duration { return time.Duration(w) }

// A handler cannot ask a sender to wait for ever, and a failure hides its class: the same event may
// be taken later.
func TestWaitOfAHandler(t *testing.T) {
	t.Parallel()

	in := newIntake(t, verifies(is(nil), is(nil)), fails(func(string) error {
		return errors.Join(waitError(1<<62), core.ErrForbidden)
	}, nil), Options{})
	f := verdictOf(in.Receive(t.Context(), request(runtimeA, events(1, 1)))).Failed[0]
	if f == nil || f.RetryAfter() != 5*time.Minute || errors.Is(f, core.ErrForbidden) {
		t.Errorf("failure %v, which asks to wait for %v, want 5m and no class", f, f.RetryAfter())
	}
}

// A receiver that stops ends the calls of its handlers. Their events go to another replica.
func TestStop(t *testing.T) {
	t.Parallel()

	in := newIntake(t, verifies(is(nil), is(nil)), fails(func(string) error { return context.Canceled }, nil), Options{})
	if v := verdictOf(in.Receive(t.Context(), request(runtimeA, events(1, 1)))); v.Whole != nil {
		t.Fatalf("the batch failed with %v, want that of its event", v.Whole)
	}

	in.Stop()
	if v := verdictOf(in.Receive(t.Context(), request(runtimeA, events(1, 1)))); v.Whole == nil || v.Whole.Fault != FaultOfReplica {
		t.Errorf("after Stop the batch failed with %v, want that of this replica", v.Whole)
	}
}

// The fleet has seen an event that the transport keeps, and a resync replaces it until it is
// taken.
func TestFailuresThatAreNotReturned(t *testing.T) {
	t.Parallel()
	for returned, want := range map[bool]string{true: "", false: "gap"} {
		synctest.Test(t, func(t *testing.T) {
			var resynced string
			in := newIntake(t, verifies(is(nil), is(nil)), fails(func(name string) error {
				if name == "2" {
					return errors.New("inside")
				}
				return nil
			}, nil), Options{Fleet: newFleet(t, fleet.Options{Resynced: func(r hook.Resync) { resynced = string(r.Cause) }})})

			go in.DeliverResyncs(t.Context()) //nolint:errcheck // The test sees its resyncs.
			known := events(1, 1)
			known.Events[0].Resync = true
			_ = in.Receive(t.Context(), request(runtimeA, known))
			r := request(runtimeA, events(3, 2))
			offered := map[int]string{}

			r.Return = func(err error) bool {
				failed, _ := errors.AsType[core.EventErrors](err)
				for i, cause := range failed {
					offered[i] = string(core.ReasonOf(cause))
				}
				return returned
			}

			_ = in.Receive(t.Context(), r)
			if diff := cmp.Diff(map[int]string{2: "other"}, offered); diff != "" {
				t.Errorf("offered (-want +have):\n%s", diff)
			}

			time.Sleep(10 * time.Second)
			synctest.Wait()
			if s := in.opts.Fleet.Get(runtimeA, manager); resynced != want || s.Replicas[0].Sequence != 4 {
				t.Errorf("returned %v: a resync because of %q after number %d, want %q and 4", returned, resynced, s.Replicas[0].Sequence, want)
			}
		})
	}
}

// Return is called only with failures: a transport would deliver a batch twice.
func TestTakenBatchesAreNotOffered(t *testing.T) {
	t.Parallel()

	in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, nil), Options{})
	r := request(runtimeA, events(1, 1))
	r.Return = func(err error) bool {
		t.Errorf("a batch that was taken is offered with %v", err)
		return true
	}
	_ = in.Receive(t.Context(), r)
}

// The fleet knows who is refused, and why, until a request is taken.
func TestTheFleetKnowsWhoIsRefused(t *testing.T) {
	t.Parallel()

	watched := newFleet(t, fleet.Options{})
	var answer error
	in := newIntake(t, verifies(is(nil), func() error { return answer }), fails(takes, nil), Options{Fleet: watched})
	for want, err := range map[string]error{"": nil, reasons.SANMismatch: refusal(core.ErrForbidden, reasons.SANMismatch)} {
		for _, answer = range []error{nil, err} {
			_ = in.Receive(t.Context(), request(runtimeA, beating(core.Batch{})))
		}
		if have := watched.Get(runtimeA, manager).Refused; string(have) != want {
			t.Errorf("refused %q, want %q", have, want)
		}
	}
}

// The runtimes send nothing to a replica that does not lead.
func TestTheFleetAsksWhetherAHandlerIsReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ready func() error
		want  fleet.State
	}{{is(core.ErrNotReady), fleet.Unknown}, {panics, fleet.Unknown}, {is(nil), fleet.Stale}} {
		synctest.Test(t, func(t *testing.T) {
			watched := newFleet(t, fleet.Options{})
			in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, c.ready), Options{Fleet: watched})
			watched.Expect(runtimeA, manager)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- in.DeliverResyncs(ctx) }()
			time.Sleep(2 * time.Minute)

			if have := watched.Get(runtimeA, manager).State; have != c.want {
				t.Errorf("%s, want %s", have, c.want)
			}

			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A panic of a handler ends neither the process nor the resync.
func TestResyncSurvivesAPanic(t *testing.T) {
	t.Parallel()

	resynced := make(chan string, 1)
	watched := newFleet(t, fleet.Options{
		ResyncJitter: time.Millisecond, Resynced: func(r hook.Resync) { resynced <- string(r.Cause) },
	})
	calls := 0

	in := newIntake(t, verifies(is(nil), is(nil)), fails(func(string) error {
		calls++
		if calls == 1 {
			panic("inside")
		}
		return nil
	}, nil), Options{Fleet: watched})

	watched.Receiver().Observe(core.Peer{ID: runtimeA}, manager, events(1, 1), nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- in.DeliverResyncs(ctx) }()
	cause := <-resynced
	cancel()

	if err := <-done; err != nil || cause != "new_epoch" || calls != 2 {
		t.Errorf("resync because of %s after %d attempts: %v, want new_epoch after 2", cause, calls, err)
	}
}

// A verifier that panics, and a handler that hangs, leave numbers unobserved. All of them came to
// this replica, so they show no other one that takes requests of the runtime.
func TestFailuresHereShowNoOtherReplica(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fails func(t *testing.T, in *Intake, hung *sync.WaitGroup, batch core.Batch)
		want  fleet.Reason
	}{
		"control: another replica takes each second event": {
			func(*testing.T, *Intake, *sync.WaitGroup, core.Batch) {}, fleet.ReasonSharedByReplicas,
		},
		"the verifier panics": {func(t *testing.T, in *Intake, _ *sync.WaitGroup, batch core.Batch) {
			t.Helper()
			if v := verdictOf(in.Receive(t.Context(), request(runtimeA, batch))); v.Whole == nil && len(v.Failed) == 0 {
				t.Error("control: the verifier did not panic")
			}
		}, ""},
		"the handler hangs": {func(t *testing.T, in *Intake, hung *sync.WaitGroup, batch core.Batch) {
			t.Helper()
			batch.Events[0].Watched.Name = "hangs"
			hung.Go(func() { _ = in.Receive(t.Context(), request(runtimeA, batch)) })
			synctest.Wait()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				goOn := make(chan struct{})
				hung := &sync.WaitGroup{}
				panicking := false
				verifier := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error {
					if panicking {
						panic("inside")
					}
					return nil
				})

				watched := newFleet(t, fleet.Options{})
				in := newIntake(t, verifier, fails(func(name string) error {
					if name == "hangs" {
						<-goOn
					}
					return nil
				}, nil), Options{Fleet: watched, RuntimeInFlight: 64})

				for n := uint64(1); n < 40; n += 2 {
					batch := beating(events(1, n))
					batch.Heartbeat.Number = n
					batch.Heartbeat.Sequence = n
					if err := in.Receive(t.Context(), request(runtimeA, batch)); err != nil {
						t.Fatal(err)
					}

					panicking = name == "the verifier panics"
					tt.fails(t, in, hung, events(1, n+1))
					panicking = false
				}

				if s := watched.Get(runtimeA, manager); s.Reason != tt.want {
					t.Errorf("the runtime is %s %q, want %q", s.State, s.Reason, tt.want)
				}

				close(goOn)
				hung.Wait()
			})
		})
	}
}
