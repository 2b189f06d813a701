package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// inbox is a control plane that keeps what it gets.
type inbox struct {
	mu     sync.Mutex
	events []core.WatchEvent
	down   bool
}

func (i *inbox) Forward(_ context.Context, _ core.Manager, events []core.WatchEvent) error {
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.down {
		return errDown
	}

	i.events = append(i.events, events...)

	return nil
}

func (i *inbox) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.down = down
}

func (i *inbox) all() []core.WatchEvent {
	i.mu.Lock()
	defer i.mu.Unlock()

	return slices.Clone(i.events)
}

func (i *inbox) beats() (beats []core.Heartbeat) {
	for _, event := range i.all() {
		if event.Heartbeat != nil {
			beats = append(beats, *event.Heartbeat)
		}
	}

	return beats
}

func TestKnownManagersGetAResyncAndHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		_, stop := run(t, in, outbox.Options{Managers: []core.Manager{kyma}, ResyncFirst: true, Epoch: "e"})

		time.Sleep(time.Minute + time.Second)
		stop()

		beats := in.beats()
		if len(beats) != 4 { // At 0, 30 and 60 s, and the last one.
			t.Fatalf("%d heartbeats in a minute, want 4", len(beats))
		}

		want := core.Heartbeat{
			Number: 4, Interval: outbox.DefaultHeartbeatInterval, Sequence: 2, Leaving: true, Dropped: map[string]int64{},
		}
		if diff := cmp.Diff(want, beats[3]); diff != "" {
			t.Errorf("last heartbeat (-want +got):\n%s", diff)
		}

		resync := in.all()[1]
		if resync.Kind != core.KindResync || resync.Epoch != "e" || resync.Sequence != 1 {
			t.Errorf("first event %+v, want a resync with number 1", resync)
		}
	})
}

func TestFirstEventBringsAResyncOfItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{ResyncFirst: true, InFlight: 1})

		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		o.Accept(kyma, named("b"))
		time.Sleep(time.Second)
		wantCalls(t, p, at(100*ms, "resync of owner"), at(100*ms, "a"), at(1100*ms, "b"))
		stop()
	})
}

func TestHeartbeatTellsHowTheOutboxFares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{down: true}
		o, stop := run(t, in, outbox.Options{
			Epoch: "e", MaxKeys: 2, MaxBatch: 10,
			Heartbeat: func(core.Manager) core.Heartbeat { return core.Heartbeat{Instance: "pod-1", Canary: core.CanaryAlive} },
		})

		for _, name := range []string{"a", "b", "c"} {
			o.Accept(kyma, named(name))
		}

		time.Sleep(time.Minute)
		in.setDown(false)
		time.Sleep(time.Minute)

		beats := in.beats()
		if len(beats) < 2 || len(beats) > 4 {
			t.Fatalf("%d heartbeats after the outage, want 2 or 3: they must not pile up", len(beats))
		}

		first := beats[0]
		if first.Pending != 3 || first.OldestPending < time.Minute || first.Dropped[outbox.ReasonOverflow] != 1 ||
			first.Instance != "pod-1" || first.Canary != core.CanaryAlive {
			t.Errorf("first heartbeat %+v, want 3 pending for a minute and 1 dropped", first)
		}

		if last := beats[len(beats)-1]; last.Pending != 0 || last.Sequence != 3 {
			t.Errorf("last heartbeat %+v, want nothing pending after 3 events", last)
		}

		stop()
	})
}

func TestNoLeaveWithoutDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{Epoch: "e", DrainTimeout: 5 * time.Second})

		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		in.setDown(true)
		o.Accept(kyma, named("b"))
		stop()

		for _, beat := range in.beats() {
			if beat.Leaving {
				t.Errorf("heartbeat %+v takes leave although an event was lost", beat)
			}
		}
	})
}

// A heartbeat that is on its way when the process is told to end is not the last one.
func TestLeaveFollowsAHeartbeatThatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		slow := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, events []core.WatchEvent) error {
			time.Sleep(time.Second)

			return in.Forward(ctx, manager, events)
		})
		_, stop := run(t, slow, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e", DrainTimeout: 5 * time.Second})

		time.Sleep(500 * ms) // The first is on its way.
		stop()

		beats := in.beats()
		if len(beats) != 2 || beats[0].Leaving || !beats[1].Leaving {
			t.Errorf("heartbeats %+v, want one, and the last one", beats)
		}
	})
}

// Nobody else would look for a write that is committed after the first look at what went by unseen.
func TestNoLeaveWhileASecondLookWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e", DrainTimeout: 5 * time.Second})

		time.Sleep(time.Second)
		o.Resync()
		time.Sleep(time.Second)
		stop()

		for _, beat := range in.beats() {
			if beat.Leaving {
				t.Errorf("heartbeat %+v takes leave before the second look", beat)
			}
		}
	})
}

func TestEpochNeedsOneCallAtATime(t *testing.T) {
	if _, err := outbox.New(&inbox{}, outbox.Options{Epoch: "e", InFlight: 2}); err == nil {
		t.Error("no error for two calls at a time with numbers")
	}
}

// A heartbeat that comes back, as the contract in use carries none, says nothing of a manager that takes no events.
func TestAHeartbeatThatComesBackIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer

		p := newPlane(func(_ context.Context, n int, events []core.WatchEvent) error {
			switch {
			case n == 0:
				return errDown
			case events[0].Kind == core.KindHeartbeat:
				return core.EventErrors{0: verdict{reason: "no_heartbeats", permanent: true}}
			default:
				return nil
			}
		})
		o, stop := run(t, p, outbox.Options{
			Epoch: "e", HeartbeatInterval: time.Minute, Managers: []core.Manager{kyma}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		again := func() bool { return strings.Contains(log.String(), "takes events again") }

		time.Sleep(time.Hour)
		synctest.Wait()

		if calls := len(p.seen()); calls < 50 || calls > 70 || !strings.Contains(log.String(), "does not take events") || again() {
			t.Errorf("after %d calls, the log says:\n%s", calls, &log)
		}

		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		synctest.Wait()

		if !again() {
			t.Errorf("an event was taken, and the log says:\n%s", &log)
		}

		stop()
	})
}
