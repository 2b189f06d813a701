package coretest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

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
