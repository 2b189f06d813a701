package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A runtime that is loud makes no other one loud, and is quiet again in the next second.
func TestTwoRuntimesAreLoudForThemselves(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		for _, runtime := range []core.RuntimeID{"first", "second"} {
			for n := range perSecond + 1 {
				if loud := r.countChange(runtime); loud != (n == perSecond) {
					r.t.Errorf("%s is loud with %d changes: %t", runtime, n+1, loud)
				}
			}
		}

		time.Sleep(time.Second)
		if r.countChange("first") || r.countChange("second") {
			r.t.Error("a runtime is loud in the second after its changes")
		}
	})
}

// The requests of two loud runtimes, and those of a list, wait for their own kind only.
func TestListsOfTwoRuntimesWaitForThemselves(t *testing.T) {
	t.Parallel()
	inRaising(t, func(r *raising) {
		for _, of := range []core.RuntimeID{"", "first", "second"} {
			for n := range 3 {
				request := fmt.Sprint(of, "-", n)
				r.addListed(of, request)
				if wait, want := r.wants(request), resyncWait+time.Duration(n)*listedPace; wait != want {
					r.t.Errorf("request %s gets the priority of a change in %v, want %v", request, wait, want)
				}
			}
		}
	})
}

// The exact number of objects of a runtime that are remembered. Another runtime has other places.
func TestTheObjectsOfTwoRuntimesAreBounded(t *testing.T) {
	t.Parallel()

	book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited)}
	for _, runtime := range []core.RuntimeID{"first", "second"} {
		for n := range maxAwaitedOfRuntime + 1 {
			where := place[string]{request: "r", uid: types.UID(strconv.Itoa(n))}
			if placed := book.addPlace(runtime, where) != nil; placed != (n < maxAwaitedOfRuntime) {
				t.Fatalf("object %d of %s has a place: %t", n+1, runtime, placed)
			}
		}
	}

	if book.size != 2*maxAwaitedOfRuntime {
		t.Errorf("the size is %d, want %d", book.size, 2*maxAwaitedOfRuntime)
	}

	// Two objects of the first runtime give way, one after the other, and the size follows.
	for range 2 {
		if !book.evictPlace(0) {
			t.Fatal("no object gives way")
		}
	}

	if all := len(book.runtimes["first"]) + len(book.runtimes["second"]); all != book.size || book.size != 2*maxAwaitedOfRuntime-2 {
		t.Errorf("the size is %d with %d objects, want %d", book.size, all, 2*maxAwaitedOfRuntime-2)
	}
}

// After a resync of one runtime, no earlier read of it counts: neither a version, nor an absence,
// nor a deletion. The reads of another runtime count still.
func TestAResyncEndsEachKindOfRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited), order: 10}
		until := time.Now().Add(awaitedFor)
		kinds := map[types.UID]awaited{
			"version":  {until: until, sinceOrder: 1, version: 7, read: time.Now()},
			"absence":  {until: until, sinceOrder: 2, absent: true, read: time.Now()},
			"deletion": {until: until, sinceOrder: 3, deletionOrder: 4, absent: true, read: time.Now()},
		}
		for _, runtime := range []core.RuntimeID{"resynced", "beside"} {
			book.runtimes[runtime] = make(map[place[string]]*awaited)
			for uid, a := range kinds {
				book.runtimes[runtime][place[string]{uid: uid}] = new(a)
			}
		}

		book.endReads("resynced", &core.WatchEvent{Resync: true, Time: time.Now()})
		deletion := &core.WatchEvent{Base: 5, Operation: core.OperationDelete}
		for uid, before := range kinds {
			ended := book.runtimes["resynced"][place[string]{uid: uid}]
			if ended.hasRead(deletion) || ended.sinceOrder != 11 || (ended.deletionOrder > 0) != (before.deletionOrder > 0) ||
				before.deletionOrder > 0 && ended.deletionOrder != 11 {
				t.Errorf("%s after the resync: %+v, want no read, and the order of the resync", uid, ended)
			}
			if beside := book.runtimes["beside"][place[string]{uid: uid}]; !beside.hasRead(deletion) || beside.sinceOrder != before.sinceOrder {
				t.Errorf("%s of another runtime: %+v, want it as before", uid, beside)
			}
		}
	})
}

// final is a permanent error.
type final struct{ error }

func (final) Retryable() bool { return false }

type failing struct {
	err   error
	ready error
	after time.Duration
	calls *[]string
	name  string
}

func (f failing) Handle(context.Context, core.Delivery) error {
	*f.calls = append(*f.calls, f.name)
	return f.err
}
func (f failing) Ready() error                { return f.ready }
func (f failing) RecheckAfter() time.Duration { return f.after }

// Each of several handlers gets the event, in any order of their failures. A temporary failure
// hides a permanent one. None gets it while one of them is not ready.
func TestEachOfSeveralHandlersGetsTheEvent(t *testing.T) {
	t.Parallel()

	permanent := error(final{errors.New("permanent")})
	temporary := errors.New("temporary")
	for _, tt := range []struct {
		errs    []error
		want    error
		skipped int // The handler that is not ready, from 1.
		calls   int
	}{
		{errs: []error{nil, nil, nil}, calls: 3},
		{errs: []error{permanent, temporary, nil}, want: temporary, calls: 3},
		{errs: []error{temporary, permanent, permanent}, want: temporary, calls: 3},
		{errs: []error{permanent, nil, nil}, want: permanent, calls: 3},
		{errs: []error{nil, nil, permanent}, want: permanent, calls: 3},
		{errs: []error{nil, nil, nil}, skipped: 3, want: core.ErrNotReady, calls: 0},
		{errs: []error{nil, nil, nil}, skipped: 1, want: core.ErrNotReady, calls: 0},
	} {
		var calls []string
		var all severalHandlers
		for n, err := range tt.errs {
			one := failing{err: err, calls: &calls, name: strconv.Itoa(n)}
			if tt.skipped == n+1 {
				one.ready = core.ErrNotReady
			}
			all = append(all, one)
		}

		err := all.Handle(t.Context(), core.Delivery{})
		if !errors.Is(err, tt.want) || len(calls) != tt.calls || core.IsPermanent(err) != errors.Is(tt.want, permanent) {
			t.Errorf("handlers that return %v: %v after the calls %v, want %v after %d", tt.errs, err, calls, tt.want, tt.calls)
		}
	}
}

// A handler that does not check makes all of them check nothing, wherever it is among them.
func TestOneOfSeveralHandlersChecksNothing(t *testing.T) {
	t.Parallel()
	for _, none := range []time.Duration{0, -1} {
		for at := range 3 {
			var all severalHandlers
			for n := range 3 {
				after := time.Second
				if n == at {
					after = none
				}
				all = append(all, failing{after: after})
			}

			if have := all.RecheckAfter(); have != 0 {
				t.Errorf("handler %d checks after %v: all of them after %v, want 0", at, none, have)
			}
		}
	}
}

// A full channel is waited for once in a second, and not by each event. The option Elected of the
// operator stays, if it has one.
func TestAFullChannelIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		close(leads)
		one := func(context.Context, core.Delivery) ([]reconcile.Request, error) { return []reconcile.Request{{}}, nil }
		handler := ToChannel(make(chan event.GenericEvent), one, SourceOptions{Elected: leads})
		if err := handler.(attachable).attachTo(&attachment{elected: make(chan struct{}), manager: "m"}); err != nil {
			t.Fatal(err)
		}

		waits := []time.Duration{}
		for range 3 {
			began := time.Now()
			if err := handler.Handle(t.Context(), core.Delivery{}); !errors.Is(err, core.ErrNotReady) {
				t.Errorf("error %v of a full channel", err)
			}

			waits = append(waits, time.Since(began))
			if len(waits) == 2 {
				time.Sleep(fullPause)
			}
		}

		if want := []time.Duration{roomWait, 0, roomWait}; !slices.Equal(waits, want) {
			t.Errorf("waits of %v, want %v", waits, want)
		}
	})
}
