package outbox_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// A time that has passed when the event is sent is skipped, and only that.
func TestPassedResendIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := newPlane(func(context.Context, int, core.Batch) error {
			if time.Since(start) < 10*time.Second {
				return errDown
			}

			return nil
		})
		o := newOutbox(t, p, outbox.Options{})
		stop := startOutbox(t, o)
		o.Accept(kyma, named("a"))
		time.Sleep(time.Hour)

		if c := o.Counts()[kyma]; c.Accepted != 2 || c.Delivered != 2 {
			t.Errorf("counts %+v, want the event and one resend", c)
		}

		if calls := p.seen(); calls[len(calls)-1].At != 35*time.Second {
			t.Errorf("calls %v, want the last one at 35 s", calls)
		}

		stop()
	})
}

func TestResendIsAnEventOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{Epoch: "e", Resend: []time.Duration{3 * time.Second}, HeartbeatInterval: -1})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		o.Accept(kyma, named("b"))
		time.Sleep(time.Minute)
		stop()

		var got []string
		for _, event := range in.events() {
			got = append(got, fmt.Sprint(nameOf(event.WatchEvent), " ", event.Sequence, " ", event.ID))
		}

		if want := "a 1 e-kyma-1, b 2 e-kyma-2, a 3 e-kyma-3, b 4 e-kyma-4"; strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
		}
	})
}

func TestStreamOfWritesIsResentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{Resend: []time.Duration{time.Second}})

		for range 1000 {
			o.Accept(kyma, named("a"))
			time.Sleep(10 * ms)
		}

		last := time.Since(p.start) - 10*ms

		time.Sleep(time.Minute)

		calls := p.seen()

		n := 0
		for _, call := range calls {
			if call.At > last+100*ms {
				n++
			}
		}

		if end := calls[len(calls)-1].At; n != 1 || end != last+time.Second {
			t.Errorf("%d calls after the last write at %v had settled, the last one at %v, want one 1 s after it", n, last, end)
		}

		stop()
	})
}

func TestLateEventIsNotResent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool

		p := newPlane(func(context.Context, int, core.Batch) error {
			if up.Load() {
				return nil
			}

			return errDown
		})
		o, stop := run(t, p, outbox.Options{Resend: []time.Duration{3 * time.Second}})
		o.Accept(kyma, named("a"))
		time.Sleep(10 * time.Second)
		up.Store(true)
		time.Sleep(time.Minute)
		wantCounts(t, o, outbox.Counts{Accepted: 1, Delivered: 1})
		stop()
	})
}

// A resend counts for MaxKeys, but gives way to a new key of any manager.
func TestResendsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPlane(nil), newPlane(nil)
		both := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if manager != kyma {
				return other.Forward(ctx, manager, batch)
			}

			return p.Forward(ctx, manager, batch)
		})
		o, stop := run(t, both, outbox.Options{
			MaxKeys: 1, Resend: []time.Duration{3 * time.Second}, ResendResync: 3 * time.Second,
		})

		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)

		if got := o.Accept("other", named("b")); got != core.Accepted {
			t.Errorf("outcome %s, want it accepted, as only a resend has to make room", got)
		}

		if got := o.Accept("other", named("c")); got != core.Dropped {
			t.Errorf("outcome %s, want it dropped, as events do not make room", got)
		}

		time.Sleep(time.Minute)
		stop()

		// The resync for the resend of a is as late as that. The resync for c is resent, as c would
		// have been.
		wantCalls(t, p, at(100*ms, "a"), at(4*time.Second, "resync"))
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})

		if got := len(other.seen()); got != 4 {
			t.Errorf("%d calls for the other manager, want 4", got)
		}
	})
}

// A resync that stands in for resends is neither delayed by those that follow nor sent for each of
// them.
func TestOverflowOfResends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{MaxKeys: 1, Resend: []time.Duration{time.Second}})

		for i := range 50 {
			o.Accept(kyma, named(strconv.Itoa(i)))
			time.Sleep(190 * ms)
		}

		time.Sleep(time.Minute)

		if got := o.Accept(kyma, named("there is room again")); got != core.Accepted {
			t.Errorf("outcome %s, want it accepted", got)
		}

		stop()

		if counts := o.Counts()[kyma]; len(counts.Dropped) > 0 {
			t.Errorf("counts %+v, want nothing dropped", counts)
		}

		var resyncs []time.Duration
		for _, call := range p.seen() {
			if strings.HasPrefix(call.Names[0], "resync") {
				resyncs = append(resyncs, call.At)
			}
		}

		// The last resend that made room did so after 49 * 190 ms.
		if n := len(resyncs); n > 12 || resyncs[n-1] != 10310*ms {
			t.Fatalf("%d resyncs at %v, want about one a second, the last one at 10.31 s", n, resyncs)
		}

		for i, at := range resyncs[1:] {
			if pause := at - resyncs[i]; pause > time.Second {
				t.Errorf("%v between two resyncs, want a second at most", pause)
			}
		}
	})
}

func TestOwnersDoNotUnboundTheResends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{MaxKeys: 1, Resend: []time.Duration{time.Minute}, ResyncOwners: true})

		for i := range 2 * 100 {
			o.Accept(kyma, ownedBy(strconv.Itoa(i), "a"))
			time.Sleep(190 * ms)
		}

		time.Sleep(time.Hour)
		stop()

		owners := make(map[string]bool)
		for _, call := range p.seen() {
			if strings.HasPrefix(call.Names[0], "resync of ") {
				owners[call.Names[0]] = true
			}
		}

		if got, want := len(owners), 100; got != want {
			t.Errorf("resyncs for %d owners, want %d", got, want)
		}
	})
}

// A process that ends does not wait for resends. Its last heartbeat names those that are left, and
// the control plane asks for a resync.
func TestShutdownDoesNotWaitForResends(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		left  int64
	}{
		{after: time.Second, left: 1},
		{after: 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			in := &inbox{}
			o, stop := run(t, in, outbox.Options{Epoch: "e", Resend: []time.Duration{3 * time.Second}})
			o.Accept(kyma, named("a"))
			time.Sleep(test.after)

			began := time.Now()

			stop()

			if took := time.Since(began); took > 0 {
				t.Errorf("the end took %v, want no wait", took)
			}

			beats := in.beats()
			if last := beats[len(beats)-1]; !last.Leaving || last.Pending != test.left {
				t.Errorf("%v after the event: last heartbeat %+v, want it to leave %d resends", test.after, last, test.left)
			}

			if got := o.Counts()[kyma]; got.Accepted != got.Delivered || got.Pending != 0 {
				t.Errorf("counts %+v, want all delivered", got)
			}
		})
	}
}

// An event stands for those that it replaces, also for their resends.
func TestMergedEventSaysWhatAllWritesNeed(t *testing.T) {
	at := func(uid types.UID, base int64) core.WatchEvent {
		e := named("a")
		e.UID, e.Base = uid, base
		return e
	}
	for name, tt := range map[string]struct {
		pause  time.Duration // between two events
		events []core.WatchEvent
		want   core.WatchEvent
	}{
		"while the first waits":         {0, []core.WatchEvent{at("u", 7), at("u", 6), at("u", 5)}, at("u", 7)},
		"while the first is resent":     {time.Second, []core.WatchEvent{at("u", 7), at("u", 6)}, at("u", 7)},
		"newer writes":                  {time.Second, []core.WatchEvent{at("u", 6), at("u", 7), at("u", 8)}, at("u", 8)},
		"another object":                {time.Second, []core.WatchEvent{at("u", 7), at("v", 8)}, at("", 0)},
		"unknown between":               {time.Second, []core.WatchEvent{at("u", 7), at("", 0), at("u", 8)}, at("", 0)},
		"after the resends of the last": {time.Minute, []core.WatchEvent{at("v", 9), at("u", 8)}, at("u", 8)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var last core.WatchEvent
				o := newOutbox(t, core.ForwarderFunc(func(_ context.Context, _ core.Manager, batch core.Batch) error {
					last = batch.Events[0].WatchEvent
					return nil
				}), outbox.Options{})
				stop := startOutbox(t, o)
				for _, event := range tt.events {
					o.Accept(kyma, event)
					time.Sleep(tt.pause)
				}
				time.Sleep(time.Hour)
				stop()
				if last != tt.want {
					t.Errorf("the last event is %+v, want %+v", last, tt.want)
				}
			})
		})
	}
}
