package coretest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

func TestMemoryIsAForwarder(t *testing.T) {
	t.Parallel()
	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		memory := coretest.NewMemory(farEnd)
		return coretest.ForwarderHarness{Forwarder: memory, Disconnect: func() { memory.SetDown(true) }}
	}, coretest.ForwarderOptions{})
}

// TestNarrowTransportIsAForwarder shows that a transport may carry little, and cut batches.
func TestNarrowTransportIsAForwarder(t *testing.T) {
	t.Parallel()
	coretest.TestForwarder(t, func(_ *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		narrow := &narrow{farEnd: farEnd}
		return coretest.ForwarderHarness{Forwarder: narrow, Disconnect: func() { narrow.down.Store(true) }}
	}, coretest.ForwarderOptions{
		WithoutOwner: true, WithoutNumbers: true, Unsendable: &core.WatchEvent{},
	})
}

// narrow is a transport for three events per request, without owners, numbers and details. It
// cannot carry an event without name.
type narrow struct {
	farEnd *coretest.Recorder
	down   atomic.Bool
}

func (n *narrow) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if len(batch.Events) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if n.down.Load() {
		return core.ErrNotReady
	}
	sent, failed := n.encode(batch.Events)
	if len(sent) == 0 {
		return failed
	}
	body := core.Batch{}
	for _, i := range sent {
		body.Events = append(body.Events, narrowed(&batch.Events[i].WatchEvent))
	}

	return joined(n.farEnd.Forward(ctx, manager, body), sent, failed)
}

// encode returns the indexes of the events that fit, and names the others.
func (n *narrow) encode(events []core.Numbered) (sent []int, failed core.EventErrors) {
	const most = 3
	failed = core.EventErrors{}
	for i := range events {
		switch {
		case len(sent) == most:
			failed[i] = core.ErrNotSent
		case !events[i].Resync && events[i].Watched.Name == "":
			failed[i] = coretest.Refusal{Permanent: true, Label: "unsendable"}.Err()
		default:
			sent = append(sent, i)
		}
	}

	return sent, failed
}

func narrowed(event *core.WatchEvent) core.Numbered {
	return core.Numbered{WatchEvent: core.WatchEvent{
		Resync: event.Resync, Watched: event.Watched, WatchedGVK: event.WatchedGVK,
	}}
}

// joined returns the answer to the sent events together with the failures of the others.
func joined(err error, sent []int, failed core.EventErrors) error {
	some, partial := errors.AsType[core.EventErrors](err)
	if err != nil && !partial {
		return err
	}

	for i, err := range some {
		failed[sent[i]] = err
	}

	if len(failed) == 0 {
		return nil
	}
	return failed
}

func TestMemorySharesNoBatchWithItsFarEnd(t *testing.T) {
	t.Parallel()

	var got core.Batch
	memory := coretest.NewMemory(core.ForwarderFunc(func(_ context.Context, _ core.Manager, b core.Batch) error {
		got = b
		return nil
	}))
	sent := core.NewBatch(core.WatchEvent{Watched: types.NamespacedName{Name: "a"}})

	sent.Heartbeat = &core.Heartbeat{Dropped: map[core.Reason]int64{"a": 1}, CAFingerprints: []string{"a"}}
	if err := memory.Forward(t.Context(), "m", sent); err != nil {
		t.Fatal(err)
	}

	clear(sent.Events)
	clear(sent.Heartbeat.Dropped)
	clear(sent.Heartbeat.CAFingerprints)
	beat := got.Heartbeat
	if got.Events[0].Watched.Name != "a" || beat.Dropped["a"] != 1 || !slices.Equal(beat.CAFingerprints, []string{"a"}) {
		t.Errorf("the far end sees later changes of the batch: %+v", got)
	}
}

// domains is a verifier that has the DNS name of each owner.
type domains map[string]string

var _ core.Verifier = domains{}

func (d domains) Verify(_ context.Context, peer core.Peer, event *core.WatchEvent) error {
	domain, ok := d[event.Owner.Name]
	switch {
	case peer.ID == "":
		return core.ErrUnauthenticated
	case !ok:
		return fmt.Errorf("owner %s: %w", event.Owner.Name, core.ErrNotReady)
	case !slices.Contains(peer.DNSNames, domain):
		return fmt.Errorf("want the name %s: %w", domain, core.ErrForbidden)
	default:
		return nil
	}
}

func verifierCases() []coretest.VerifierCase {
	peer := core.Peer{ID: "runtime-1", DNSNames: []string{"other.example", "one.example"}}
	event := func(owner string) core.WatchEvent {
		return core.WatchEvent{Owner: types.NamespacedName{Namespace: "kcp-system", Name: owner}}
	}
	return []coretest.VerifierCase{
		{Name: "its own owner", Peer: peer, Event: event("one")},
		{Name: "another owner", Peer: peer, Event: event("two"), Want: core.ErrForbidden},
		{Name: "an owner not known yet", Peer: peer, Event: event("three"), Want: core.ErrNotReady},
		{Name: "without identity", Peer: core.Peer{}, Event: event("one"), Want: core.ErrUnauthenticated},
	}
}

func TestVerifierSuitePassesAVerifier(t *testing.T) {
	t.Parallel()
	verifier := domains{"one": "one.example", "two": "two.example"}
	coretest.TestVerifier(t, func(*testing.T) core.Verifier { return verifier }, verifierCases()...)
}

// A verifier with a cold cache answers every question with ErrNotReady. It has no case that
// passes.
func TestVerifierSuitePassesAColdVerifier(t *testing.T) {
	t.Parallel()

	peer := core.Peer{ID: "runtime-1", DNSNames: []string{"one.example"}}
	event := core.WatchEvent{Owner: types.NamespacedName{Name: "one"}}
	coretest.TestVerifier(t, func(*testing.T) core.Verifier { return domains{} },
		coretest.VerifierCase{Name: "cold", Peer: peer, Event: event, Want: core.ErrNotReady})
}

func named(names ...string) []core.WatchEvent {
	events := make([]core.WatchEvent, len(names))
	for i, name := range names {
		events[i].Watched = types.NamespacedName{Name: name}
	}
	return events
}

func batchOf(names ...string) core.Batch { return core.NewBatch(named(names...)...) }

func fails(err error) func(context.Context, core.Batch) error {
	return func(context.Context, core.Batch) error { return err }
}

// Answers are used in order, then the answer of Always. Each call is recorded with its answer.
func TestRecorderRecordsAndFollowsItsScript(t *testing.T) {
	t.Parallel()

	var (
		recorder coretest.Recorder
		refusal  = coretest.Refusal{Label: "refused"}.Err()
	)
	some := core.EventErrors{1: refusal}
	recorder.Next(fails(refusal), fails(some))
	first := recorder.Forward(t.Context(), "m", batchOf("a"))
	second := recorder.Forward(t.Context(), "m", batchOf("a", "b", "c"))
	third := recorder.Handle(t.Context(), core.Delivery{Runtime: "r", Manager: "m", Event: named("d")[0]})
	recorder.Always(fails(core.ErrForbidden))

	fourth := recorder.Forward(t.Context(), "n", batchOf("e"))
	if !errors.Is(first, refusal) || third != nil || !errors.Is(fourth, core.ErrForbidden) {
		t.Errorf("answers are %v, %v, %v, %v", first, second, third, fourth)
	}

	want := []coretest.Call{
		{Manager: "m", Batch: batchOf("a"), Returned: true, Err: refusal},
		{Manager: "m", Batch: batchOf("a", "b", "c"), Returned: true, Err: some},
		{Runtime: "r", Manager: "m", Batch: batchOf("d"), Returned: true},
		{Manager: "n", Batch: batchOf("e"), Returned: true, Err: core.ErrForbidden},
	}

	compareErrors := cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
	if diff := cmp.Diff(want, recorder.Calls(), compareErrors); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(named("a", "c", "d"), recorder.Acknowledged("m")); diff != "" {
		t.Errorf("acknowledged for m (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]core.WatchEvent(nil), recorder.Acknowledged("n"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("acknowledged for n (-want +got):\n%s", diff)
	}
}

// Waiting ends with the awaited call or with the context. A call that hangs counts as arrived, not
// as accepted.
func TestRecorderWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var recorder coretest.Recorder
		recorder.Next(func(ctx context.Context, _ core.Batch) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup

		group.Go(func() {
			if err := recorder.Forward(ctx, "m", batchOf("a")); !errors.Is(err, context.Canceled) {
				t.Errorf("Forward = %v, want the end of the context", err)
			}
		})

		if err := recorder.WaitCalls(t.Context(), 1); err != nil {
			t.Errorf("WaitCalls = %v", err)
		}
		if calls := recorder.Calls(); calls[0].Returned || len(recorder.Acknowledged("m")) != 0 {
			t.Errorf("a call that hangs counts as answered: %+v", calls[0])
		}

		short, cancelShort := context.WithTimeout(t.Context(), time.Minute)
		defer cancelShort()
		if err := recorder.WaitAcknowledged(short, "m", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitAcknowledged = %v, want the end of the context", err)
		}

		cancel()
		group.Go(func() { _ = recorder.Forward(t.Context(), "m", batchOf("b")) })
		if err := recorder.WaitAcknowledged(t.Context(), "m", 1); err != nil {
			t.Errorf("WaitAcknowledged = %v", err)
		}
		group.Wait()
	})
}

func ExampleRecorder() {
	var recorder coretest.Recorder
	recorder.Next(func(context.Context, core.Batch) error { return core.ErrNotReady })
	event := core.WatchEvent{Watched: types.NamespacedName{Namespace: "default", Name: "sample"}}
	forwarder := coretest.NewMemory(&recorder)
	fmt.Println(forwarder.Forward(context.Background(), "kyma", core.NewBatch(event)))
	fmt.Println(forwarder.Forward(context.Background(), "kyma", core.NewBatch(event)))
	fmt.Println(recorder.Acknowledged("kyma")[0].Watched)
	// Output:
	// forward to kyma: not ready
	// <nil>
	// default/sample
}
