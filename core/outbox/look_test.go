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

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

func TestDeliveredEventIsSentOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{LookAgain: 3 * time.Second})
		o.Accept(kyma, named("a"))
		time.Sleep(2 * time.Second)

		// What rests is no event yet.
		wantCounts(t, o, outbox.Counts{Accepted: 1, Delivered: 1})

		if age := o.OldestPending(kyma); age != 0 {
			t.Errorf("the oldest event has waited %v, want none", age)
		}

		time.Sleep(time.Minute)
		wantCalls(t, p, at(100*ms, "a"), at(3*time.Second, "a"))
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})
		stop()
	})
}

func TestSecondLookIsAnEventOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{Epoch: "e", LookAgain: 3 * time.Second, HeartbeatInterval: -1})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		o.Accept(kyma, named("b"))
		time.Sleep(time.Minute)
		stop()

		var got []string
		for _, event := range in.all() {
			got = append(got, fmt.Sprint(event.Watched.Name, " ", event.Kind, " ", event.Sequence, " ", event.ID))
		}

		if want := "a changed 1 e-kyma-1, b changed 2 e-kyma-2, a changed 3 e-kyma-3, b changed 4 e-kyma-4"; strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
		}
	})
}

// The second look is the newest event's. Until then the newer events' own first looks are what an earlier write that is committed late is
// seen by: no object goes without a look for longer than LookAgain and the settle time.
func TestNewerEventsHaveTheSecondLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{LookAgain: time.Second})

		for range 4 {
			o.Accept(kyma, named("a"))
			time.Sleep(900 * ms)
		}

		time.Sleep(time.Minute)
		wantCalls(t, p, at(100*ms, "a"), at(1000*ms, "a"), at(1900*ms, "a"), at(2800*ms, "a"), at(3700*ms, "a"))
		wantCounts(t, o, outbox.Counts{Accepted: 5, Delivered: 5})
		stop()
	})
}

func TestStreamOfWritesHasOneSecondLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{LookAgain: time.Second})

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
			t.Errorf("%d calls after the last write at %v had settled, the last one at %v, want one a second after it", n, last, end)
		}

		stop()
	})
}

func TestWhatIsSentLateIsNotSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool

		p := newPlane(func(context.Context, int, []core.WatchEvent) error {
			if up.Load() {
				return nil
			}

			return errDown
		})
		o, stop := run(t, p, outbox.Options{LookAgain: 3 * time.Second})
		o.Accept(kyma, named("a"))
		time.Sleep(10 * time.Second)
		up.Store(true)
		time.Sleep(time.Minute)
		wantCounts(t, o, outbox.Counts{Accepted: 1, Delivered: 1})
		stop()
	})
}

// Second looks keep their place among the keys, but give it up for a first look, of whichever manager.
func TestSecondLooksMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPlane(nil), newPlane(nil)
		both := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
			if manager != kyma {
				return other.Forward(ctx, manager, events)
			}

			return p.Forward(ctx, manager, events)
		})
		o, stop := run(t, both, outbox.Options{MaxKeys: 1, LookAgain: 3 * time.Second})

		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)

		if got := o.Accept("other", named("b")); got != outbox.Accepted {
			t.Errorf("outcome %s, want it accepted, as only a second look has to make room", got)
		}

		if got := o.Accept("other", named("c")); got != outbox.Dropped {
			t.Errorf("outcome %s, want it dropped, as first looks do not make room", got)
		}

		time.Sleep(time.Minute)
		stop()

		// What stands in for the second look at a is not earlier than that; what stands in for c is looked at twice, as c would have been.
		wantCalls(t, p, at(100*ms, "a"), at(4*time.Second, "resync of owner"))
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})

		if got := len(other.seen()); got != 4 {
			t.Errorf("%d calls for the other manager, want 4", got)
		}
	})
}

// A resync that stands in for second looks is neither put off by those that follow nor sent for each of them.
func TestOverflowOfSecondLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{MaxKeys: 1, LookAgain: time.Second})

		for i := range 50 {
			o.Accept(kyma, named(strconv.Itoa(i)))
			time.Sleep(190 * ms)
		}

		time.Sleep(time.Minute)

		if got := o.Accept(kyma, named("there is room again")); got != outbox.Accepted {
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

		// The last second look to make room did so after 49 * 190 ms.
		if n := len(resyncs); n > 12 || resyncs[n-1] != 10310*ms {
			t.Fatalf("%d resyncs at %v, want about one a second, the last one a second after the last that it stands for", n, resyncs)
		}

		for i, at := range resyncs[1:] {
			if pause := at - resyncs[i]; pause > time.Second {
				t.Errorf("%v between two resyncs, want a second at most", pause)
			}
		}
	})
}

func TestOwnersDoNotUnboundTheSecondLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{MaxKeys: 1, LookAgain: time.Minute})

		for i := range 2 * outbox.MaxOwners {
			o.Accept(kyma, ownedBy(strconv.Itoa(i), "a"))
			time.Sleep(190 * ms)
		}

		time.Sleep(time.Hour)
		stop()

		owners := make(map[string]bool)
		for _, call := range p.seen() {
			if strings.HasPrefix(call.Names[0], "resync") {
				owners[call.Names[0]] = true
			}
		}

		if got, want := len(owners), outbox.MaxOwners+1; got != want || !owners["resync of "] {
			t.Errorf("resyncs for %d owners, want %d, and one for nobody", got, want)
		}
	})
}

// What stands in for an event that was refused has the second look, and not the event.
func TestRefusedEventHasNoSecondLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, n int, _ []core.WatchEvent) error {
			if n == 0 {
				return errRefused
			}

			return nil
		})
		o, stop := run(t, p, outbox.Options{LookAgain: 3 * time.Second})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		wantCalls(t, p, at(100*ms, "a"), at(200*ms, "resync of owner"), at(3100*ms, "resync of owner"))
		stop()
	})
}

// Nobody waits for second looks when the process ends. As it takes no leave, the manager asks for a resync.
func TestSecondLooksAreNotWaitedFor(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		leave bool
	}{
		{after: time.Second},
		{after: 4 * time.Second, leave: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			in := &inbox{}
			o, stop := run(t, in, outbox.Options{Epoch: "e", LookAgain: 3 * time.Second})
			o.Accept(kyma, named("a"))
			time.Sleep(test.after)

			began := time.Now()

			stop()

			if took := time.Since(began); took > 0 {
				t.Errorf("the end took %v, want no wait", took)
			}

			beats := in.beats()
			if leave := beats[len(beats)-1].Leaving; leave != test.leave {
				t.Errorf("%v after the event: leave taken %t, want %t", test.after, leave, test.leave)
			}

			if got := o.Counts()[kyma]; got.Accepted != got.Delivered || got.Pending != 0 {
				t.Errorf("counts %+v, want all delivered", got)
			}
		})
	}
}
