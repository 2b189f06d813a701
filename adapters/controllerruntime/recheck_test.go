package controllerruntime_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

const ms = time.Millisecond

// operateMatched returns a source with a reconcile that has read the object of an event.
func operateMatched(t *testing.T) *operated {
	t.Helper()

	o := operate(t)
	o.there.version = "5"
	o.write(4)
	o.get(o.client())
	time.Sleep(time.Second) // In a bubble.
	if n := len(drain(o.queue)); n > 0 {
		t.Errorf("%d requests after the first write, which was read", n)
	}

	return o
}

// write delivers the event of a write now, and reports whether a reconcile follows immediately.
func (o *operated) write(base int64) (reconciles bool) {
	o.t.Helper()
	return o.deliver(o.written(base))
}

func (o *operated) written(base int64) core.Delivery {
	d := named("o", "K", core.OperationUpdate, "u", base)
	d.Event.Time = time.Now()
	return d
}

func (o *operated) writtenTo(name string) core.Delivery {
	d := o.written(5)
	d.Event.Watched.Name = name
	return d
}

// after returns the number of requests within a time.
func (o *operated) after(wait time.Duration) int {
	o.t.Helper()
	time.Sleep(wait) // In a bubble.
	synctest.Wait()
	return len(drain(o.queue))
}

// TestAnEarlyReadIsRepeated delivers the event of a write, and counts the later requests. Version 5
// is the version before the write, and version 6 is the version after it.
func TestAnEarlyReadIsRepeated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reconcile func(*operated)
		want      int
	}{
		"read after the commit":  {func(o *operated) { o.there.version = "6"; o.get(o.client()) }, 0},
		"read before the commit": {func(o *operated) { o.get(o.client()) }, 1},
		"read before the commit, and after it, as after a conflict": {func(o *operated) {
			c := o.client()
			o.get(c)
			o.there.version = "6"
			o.get(c)
		}, 1},
		"read before the commit, and after it by another reconcile": {func(o *operated) {
			o.get(o.client())
			o.there.version = "6"
			o.get(o.client())
		}, 0},
		"not read":                 {func(*operated) {}, 1},
		"read for another request": {func(o *operated) { o.there.version = "6"; o.get(o.source.Client("skr:p", "skr", &o.there)) }, 1},
		"read of another runtime":  {func(o *operated) { o.there.version = "6"; o.get(o.source.Client(o.request, "skr-2", &o.there)) }, 1},
		"another object of the name": {func(o *operated) {
			o.there.uid = "v"
			o.there.version = "9"
			o.get(o.client())
		}, 1},
		"absent after the commit": {func(o *operated) { o.there.uid = ""; o.get(o.client()) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := operateMatched(t)
				if !o.write(5) {
					t.Fatal("the event is not reconciled immediately")
				}

				tt.reconcile(o)
				if got := o.after(99 * ms); got != 0 {
					t.Errorf("%d requests before the check", got)
				}
				if got := o.after(ms); got != tt.want {
					t.Errorf("%d requests at the check, want %d", got, tt.want)
				}
				if got := o.after(2 * time.Second); got != 0 {
					t.Errorf("%d requests after the check, want none", got)
				}
			})
		})
	}
}

// TestResendsAreNotChecked counts the reconciles of a write that is rejected: one for each of its
// three events, and one at the check.
func TestResendsAreNotChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := operateMatched(t)
		rejected := o.written(5)
		reconciles := 0
		for _, wait := range []time.Duration{3 * time.Second, 32 * time.Second, time.Minute} {
			if o.deliver(rejected) {
				reconciles++
			}
			o.get(o.client())
			reconciles += o.after(wait)
		}

		if reconciles != 4 {
			t.Errorf("%d reconciles of a rejected write, want 4", reconciles)
		}

		if !o.write(5) || o.after(time.Second) != 1 {
			t.Error("the write that follows a rejected one is not checked")
		}
	})
}

// TestLaterEventsMoveTheCheck delivers an event each 50 ms. Each has a reconcile, and only the last
// one needs a check.
func TestLaterEventsMoveTheCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := operateMatched(t)
		for base := int64(5); base < 15; base++ {
			if !o.write(base) {
				t.Fatal("the event is not reconciled immediately")
			}

			o.there.version = strconv.FormatInt(base, 10) // The commit takes longer than the reconcile.
			o.get(o.client())
			if got := o.after(50 * ms); got != 0 {
				t.Errorf("%d requests between the events", got)
			}
		}

		if got := o.after(50 * ms); got != 1 {
			t.Errorf("%d requests at the check of the last event, want 1", got)
		}
	})
}

// TestWithoutReadsNothingIsChecked is about operators that do not call Client, or read other
// objects.
func TestWithoutReadsNothingIsChecked(t *testing.T) {
	t.Parallel()
	for name, reconcile := range map[string]func(*operated){
		"no client":       func(*operated) {},
		"no read":         func(o *operated) { o.client() },
		"another kind":    func(o *operated) { o.there.kind = "Other"; o.get(o.client()) },
		"another request": func(o *operated) { o.get(o.source.Client("skr:p", "skr", &o.there)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := operate(t)
				o.write(7)
				reconcile(o)
				if after := o.source.RecheckAfter(); after != 0 {
					t.Errorf("senders may send before the commit, and the check comes after %v", after)
				}
				if got := o.after(time.Second); got != 0 {
					t.Errorf("%d requests for a check", got)
				}
			})
		})
	}
}

// Only a source that knows the reads of its reconciles names a check, and only on the replica that
// leads.
func TestRecheckAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		elected := make(chan struct{})
		idle := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{Elected: elected})
		started(t, idle, newQueue(t))
		if after := idle.RecheckAfter(); after != 0 {
			t.Errorf("a replica that does not lead checks after %v", after)
		}
		if after := operateMatched(t).source.RecheckAfter(); after != 100*ms {
			t.Errorf("the check comes after %v, want 100 ms", after)
		}
	})
}

// TestWithoutRoomRequestsWait delivers events of more objects than the book takes.
func TestWithoutRoomRequestsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := operateMatched(t)
		for i := range 256 {
			o.deliver(named(strconv.Itoa(i), "K", core.OperationUpdate, "u", 5))
		}

		o.after(time.Second)

		for _, want := range []struct {
			wait     time.Duration
			delivers bool
			requests int
		}{{0, true, 0}, {50 * ms, true, 0}, {49 * ms, false, 0}, {ms, false, 1}, {49 * ms, false, 0}, {ms, false, 1}, {time.Second, false, 0}} {
			if got := o.after(want.wait); got != want.requests {
				t.Errorf("%d requests, want %d", got, want.requests)
			}
			if want.delivers && o.deliver(o.writtenTo("more")) {
				t.Error("the event has a request immediately, which may be too early")
			}
		}
	})
}

// TestSeveralHandlersCheckTogether has two sources of one manager.
func TestSeveralHandlersCheckTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := operateMatched(t)
		two := operateMatched(t)
		plain := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		for name, tt := range map[string]struct {
			handlers []core.Handler
			want     time.Duration
		}{
			"both check":         {[]core.Handler{one.source, two.source}, 100 * ms},
			"one does not check": {[]core.Handler{one.source, operate(t).source}, 0},
			"one cannot check":   {[]core.Handler{one.source, plain}, 0},
		} {
			if got := controllerruntime.Several(tt.handlers...).(core.Rechecker).RecheckAfter(); got != tt.want {
				t.Errorf("%s: %v, want %v", name, got, tt.want)
			}
		}
	})
}
