package coretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// patience bounds everything that should be prompt, on a busy machine, too.
	patience = 20 * time.Second
	// advice is the wait that a far end asks for. A forwarder that sits it out runs into patience.
	advice = 60 * time.Second
)

// ForwarderHarness is a forwarder under test and the way to its far end.
type ForwarderHarness struct {
	// Forwarder is under test.
	Forwarder core.Forwarder
	// Disconnect makes the far end unreachable, for example by closing its listener and its connections.
	Disconnect func()
}

// NewForwarder makes a forwarder whose far end is new and real: it decodes each request and calls farEnd.Forward with
// the context of the request, the manager and the batch that arrived, or farEnd.Handle for each of them. What farEnd
// returns it answers in the words of its transport:
//
//   - nil acknowledges the request,
//   - an error that [core.IsPermanent] condemns it (400 in HTTP),
//   - one that is [core.ErrUnauthenticated] or [core.ErrForbidden] says so (401, 403),
//   - one that is [core.ErrNotReady] refuses for now, with the advice of [core.RetryAfter] (503),
//   - [core.EventErrors], for transports that carry several events in one request, names those that failed.
//
// Everything it starts it stops with t.Cleanup.
type NewForwarder func(t *testing.T, farEnd *Recorder) ForwarderHarness

// ForwarderOptions say what a transport can carry. The zero value means everything.
type ForwarderOptions struct {
	// WithoutOwner means that events arrive without their owner, as with contract v2.
	WithoutOwner bool
	// Unsendable is an event that the transport can not carry, such as one without owner in contract v1. Nil when there
	// is none.
	Unsendable *core.WatchEvent
}

// TestForwarder tells whether a forwarder keeps the contract of [core.Forwarder]. Each check gets a harness of its own.
func TestForwarder(t *testing.T, newForwarder NewForwarder, opts ForwarderOptions) {
	t.Helper()

	checks := []struct {
		name  string
		check func(t *testing.T, s *forwarderSuite)
	}{
		{"nothing to forward", testNothing},
		{"what is acknowledged has arrived", testArrives},
		{"many events arrive", testMany},
		{"concurrent calls arrive", testConcurrent},
		{"events are neither changed nor kept", testOwnership},
		{"cancelled before", testCancelledBefore},
		{"cancelled while the far end hangs", testCancelledMeanwhile},
		{"deadline while the far end hangs", testDeadline},
		{"permanent refusal", testPermanent},
		{"unauthenticated", testUnauthenticated},
		{"forbidden", testForbidden},
		{"not ready, with advice when to come back", testNotReady},
		{"far end unreachable", testUnreachable},
		{"one refused event does not condemn the others", testOneRefused},
		{"unsendable event", testUnsendable},
		{"works again after failures", testRecovers},
	}

	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.check(t, newForwarderSuite(t, newForwarder, opts)) })
	}
}

type forwarderSuite struct {
	ForwarderHarness

	farEnd *Recorder
	opts   ForwarderOptions
}

func newForwarderSuite(t *testing.T, newForwarder NewForwarder, opts ForwarderOptions) *forwarderSuite {
	t.Helper()

	farEnd := &Recorder{}
	harness := newForwarder(t, farEnd)

	if harness.Forwarder == nil || harness.Disconnect == nil {
		t.Fatal("the harness lacks its Forwarder or its Disconnect")
	}

	return &forwarderSuite{ForwarderHarness: harness, farEnd: farEnd, opts: opts}
}

// forward calls the forwarder with all the time that a prompt answer needs.
func (s *forwarderSuite) forward(t *testing.T, events ...core.WatchEvent) error {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	err := s.Forwarder.Forward(ctx, managerA, core.NewBatch(events...))
	if ctx.Err() != nil {
		t.Fatalf("Forward took more than %v, and returned: %v", patience, err)
	}

	return err
}

const (
	managerA core.Manager = "manager-a"
	managerB core.Manager = "manager-b"
)

// event returns the n-th of many different events: cluster-scoped ones, such of the core group, with the longest names,
// and with characters that some encoding must escape.
func event(n int) core.WatchEvent {
	e := core.WatchEvent{
		Owner:      types.NamespacedName{Namespace: "kcp-system", Name: fmt.Sprintf("runtime-%d", n)},
		Watched:    types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("object-%d", n)},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Sample"},
		Operation:  core.OperationUpdate,
		Field:      core.FieldSpec,
		Generation: int64(n),
		Time:       time.Unix(1_700_000_000, 0).UTC(),
	}

	switch n % 4 {
	case 1:
		e.Watched = types.NamespacedName{Name: fmt.Sprintf("system:role-%d", n)}
		e.WatchedGVK = schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}
	case 2:
		e.WatchedGVK = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	case 3:
		const longest = 253
		e.Watched.Name += strings.Repeat("x", longest-len(e.Watched.Name))
	}

	return e
}

func someEvents(from, count int) []core.WatchEvent {
	events := make([]core.WatchEvent, count)
	for i := range events {
		events[i] = event(from + i)
	}

	return events
}

func keys(events []core.WatchEvent, opts ForwarderOptions) map[core.EventKey]bool {
	set := make(map[core.EventKey]bool, len(events))

	for i := range events {
		key := events[i].Key()
		if opts.WithoutOwner {
			key.Owner = types.NamespacedName{}
		}

		set[key] = true
	}

	return set
}

// arrived fails t unless exactly the keys of these events were acknowledged for manager, each at least once.
func (s *forwarderSuite) arrived(t *testing.T, manager core.Manager, sent ...core.WatchEvent) {
	t.Helper()

	want, got := keys(sent, s.opts), keys(s.farEnd.Acknowledged(manager), ForwarderOptions{})

	for key := range want {
		if !got[key] {
			t.Errorf("for %s, lost: %+v", manager, key)
		}
	}

	for key := range got {
		if !want[key] {
			t.Errorf("for %s, arrived though never sent: %+v", manager, key)
		}
	}
}

func testNothing(t *testing.T, s *forwarderSuite) {
	t.Helper()

	for _, none := range [][]core.WatchEvent{nil, {}} {
		if err := s.forward(t, none...); err != nil {
			t.Errorf("Forward of nothing = %v, want nil", err)
		}
	}

	if calls := s.farEnd.Calls(); len(calls) != 0 {
		t.Errorf("Forward of nothing reached the far end %d times", len(calls))
	}

	s.Disconnect()

	if err := s.forward(t); err != nil {
		t.Errorf("Forward of nothing to an unreachable far end = %v, want nil", err)
	}
}

func testArrives(t *testing.T, s *forwarderSuite) {
	t.Helper()

	for n := range 4 {
		if err := s.forward(t, event(n)); err != nil {
			t.Fatalf("Forward of event %d = %v", n, err)
		}

		s.arrived(t, managerA, someEvents(0, n+1)...)
	}
}

func testMany(t *testing.T, s *forwarderSuite) {
	t.Helper()

	events := someEvents(0, 40)
	if err := s.forward(t, events...); err != nil {
		t.Fatalf("Forward = %v", err)
	}

	s.arrived(t, managerA, events...)
}

func testConcurrent(t *testing.T, s *forwarderSuite) {
	t.Helper()

	const calls, perCall = 16, 3

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	var (
		group sync.WaitGroup
		sent  = map[core.Manager][]core.WatchEvent{}
	)

	for i := range calls {
		manager := []core.Manager{managerA, managerB}[i%2]
		events := someEvents(i*perCall, perCall)
		sent[manager] = append(sent[manager], events...)

		group.Go(func() {
			if err := s.Forwarder.Forward(ctx, manager, core.NewBatch(events...)); err != nil {
				t.Errorf("Forward = %v", err)
			}
		})
	}

	group.Wait()
	s.arrived(t, managerA, sent[managerA]...)
	s.arrived(t, managerB, sent[managerB]...)
}

func testOwnership(t *testing.T, s *forwarderSuite) {
	t.Helper()

	events := someEvents(0, 8)
	before := slices.Clone(events)

	if err := s.forward(t, events...); err != nil {
		t.Fatalf("Forward = %v", err)
	}

	if !slices.Equal(events, before) {
		t.Errorf("Forward changed its events to %+v, from %+v", events, before)
	}

	// The race detector sees who still reads them.
	clear(events)
	s.arrived(t, managerA, before...)
}

func testCancelledBefore(t *testing.T, s *forwarderSuite) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	err := s.Forwarder.Forward(ctx, managerA, core.NewBatch(someEvents(0, 1)...))
	s.endedBy(t, err, context.Canceled)
}

func testCancelledMeanwhile(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.farEnd.Always(hang(t))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	result := make(chan error, 1)
	go func() { result <- s.Forwarder.Forward(ctx, managerA, core.NewBatch(someEvents(0, 1)...)) }()

	s.awaitCall(t)

	select {
	case err := <-result:
		t.Fatalf("Forward = %v before the far end answered", err)
	default:
	}

	cancel()
	s.endedBy(t, promptly(t, result), context.Canceled)
}

func testDeadline(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.farEnd.Always(hang(t))

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	result := make(chan error, 1)
	go func() { result <- s.Forwarder.Forward(ctx, managerA, core.NewBatch(someEvents(0, 1)...)) }()

	s.endedBy(t, promptly(t, result), context.DeadlineExceeded)
}

// hang is [Hang] until the test ends, for far ends that do not notice that the caller has gone.
func hang(t *testing.T) Answer {
	t.Helper()

	end := t.Context()

	return func(ctx context.Context, _ core.Batch) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.Done():
			return context.Cause(end)
		}
	}
}

func (s *forwarderSuite) awaitCall(t *testing.T) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	if err := s.farEnd.WaitCalls(ctx, 1); err != nil {
		t.Fatalf("nothing reached the far end: %v", err)
	}
}

func promptly(t *testing.T, result <-chan error) error {
	t.Helper()

	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		t.Fatalf("Forward did not return within %v after its context had ended", patience)

		return nil
	}
}

// endedBy fails t unless err is that of the context, which condemns nothing.
func (s *forwarderSuite) endedBy(t *testing.T, err, want error) {
	t.Helper()

	err = eventError(err, 0)
	if !errors.Is(err, want) {
		t.Errorf("Forward = %v, want an error that is %v", err, want)
	}

	if core.IsPermanent(err) {
		t.Errorf("Forward = %v is permanent, but nobody refused the event", err)
	}
}

func testPermanent(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.refused(t, &Refusal{Permanent: true, Label: "malformed"})
}

func testUnauthenticated(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.refused(t, &Refusal{Label: "unauthenticated", Cause: core.ErrUnauthenticated})
}

func testForbidden(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.refused(t, &Refusal{Label: "forbidden", Cause: core.ErrForbidden})
}

func testNotReady(t *testing.T, s *forwarderSuite) {
	t.Helper()
	s.refused(t, &Refusal{Label: "not_ready", Cause: core.ErrNotReady, After: advice})
}

// refused fails t unless the classification of want survives the way back.
func (s *forwarderSuite) refused(t *testing.T, want *Refusal) {
	t.Helper()
	s.farEnd.Always(Refuse(want))

	err := eventError(s.forward(t, event(0)), 0)
	if err == nil {
		t.Fatalf("Forward = nil, want an error: the far end refused with %v", want)
	}

	s.classified(t, err, want)
	s.arrived(t, managerA)
}

func (s *forwarderSuite) classified(t *testing.T, err error, want *Refusal) {
	t.Helper()

	if got := core.IsPermanent(err); got != want.Permanent {
		t.Errorf("IsPermanent(%v) = %v, want %v", err, got, want.Permanent)
	}

	if got := core.RetryAfter(err); got != want.After {
		t.Errorf("RetryAfter(%v) = %v, want %v", err, got, want.After)
	}

	if want.Cause != nil && !errors.Is(err, want.Cause) {
		t.Errorf("Forward = %v, want an error that is %q", err, want.Cause)
	}

	named(t, err)
}

// named fails t unless err carries a metric label.
func named(t *testing.T, err error) {
	t.Helper()

	if reason := core.Reason(err); reason == "other" || !isMetricLabel(reason) {
		t.Errorf("Reason(%v) = %q, want a name of its own: lower case words joined by '_'", err, reason)
	}
}

func isMetricLabel(text string) bool {
	notWord := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' }

	return text != "" && strings.IndexFunc(text, notWord) < 0
}

func testUnreachable(t *testing.T, s *forwarderSuite) {
	t.Helper()

	if err := s.forward(t, event(0)); err != nil {
		t.Fatalf("Forward = %v before the far end was gone", err)
	}

	s.Disconnect()

	err := eventError(s.forward(t, event(1)), 0)
	if err == nil {
		t.Fatal("Forward to an unreachable far end = nil, want an error")
	}

	if core.IsPermanent(err) {
		t.Errorf("Forward = %v is permanent, but the far end may come back", err)
	}

	named(t, err)
	s.arrived(t, managerA, event(0))
}

func testOneRefused(t *testing.T, s *forwarderSuite) {
	t.Helper()

	const refused = 2

	bad := event(refused).Watched.Name
	s.farEnd.Always(RefuseSome(&Refusal{Permanent: true, Label: "malformed"},
		func(e *core.WatchEvent) bool { return e.Watched.Name == bad }))

	events := someEvents(0, 5)
	s.onlyCondemned(t, s.forward(t, events...), events, refused)
}

func testUnsendable(t *testing.T, s *forwarderSuite) {
	t.Helper()

	if s.opts.Unsendable == nil {
		t.Skip("the transport can carry every event")
	}

	alone := eventError(s.forward(t, *s.opts.Unsendable), 0)
	if !core.IsPermanent(alone) {
		t.Errorf("Forward of an unsendable event = %v, want a permanent error", alone)
	}

	named(t, alone)
	s.arrived(t, managerA)

	events := []core.WatchEvent{event(0), *s.opts.Unsendable, event(1)}
	s.onlyCondemned(t, s.forward(t, events...), events, 1)
}

// onlyCondemned fails t unless exactly one event is refused for good, and what err does not name has arrived.
func (s *forwarderSuite) onlyCondemned(t *testing.T, err error, events []core.WatchEvent, condemned int) {
	t.Helper()

	failed, ok := errors.AsType[core.EventErrors](err)
	if !ok {
		t.Fatalf("Forward = %v, want core.EventErrors: one event was refused, and the others were not", err)
	}

	var delivered []core.WatchEvent

	for i := range events {
		if got, want := core.IsPermanent(failed[i]), i == condemned; got != want {
			t.Errorf("IsPermanent of event %d = %v, want %v: %v", i, got, want, failed[i])
		}

		if failed[i] == nil {
			delivered = append(delivered, events[i])
		}
	}

	s.acknowledgedAll(t, delivered)

	if core.IsPermanent(err) {
		t.Errorf("IsPermanent(%v) = true, and condemns events that were delivered", err)
	}
}

func (s *forwarderSuite) acknowledgedAll(t *testing.T, events []core.WatchEvent) {
	t.Helper()

	got := keys(s.farEnd.Acknowledged(managerA), ForwarderOptions{})
	for key := range keys(events, s.opts) {
		if !got[key] {
			t.Errorf("reported as delivered, but lost: %+v", key)
		}
	}
}

func testRecovers(t *testing.T, s *forwarderSuite) {
	t.Helper()

	for _, answer := range []Answer{Refuse(core.ErrNotReady), Refuse(core.ErrForbidden), hang(t)} {
		s.farEnd.Always(answer)

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := s.Forwarder.Forward(ctx, managerA, core.NewBatch(someEvents(0, 1)...)); err == nil {
			t.Error("Forward = nil, want an error: the far end does not accept")
		}

		cancel()
		s.farEnd.Always(Accept)

		if err := s.forward(t, event(1)); err != nil {
			t.Errorf("Forward = %v, want nil: the far end accepts again", err)
		}
	}

	s.acknowledgedAll(t, someEvents(1, 1))
}
