package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// inbox is a control plane that keeps all batches.
type inbox struct {
	mu      sync.Mutex
	batches []core.Batch
	down    bool
}

func (i *inbox) Forward(_ context.Context, _ core.Manager, batch core.Batch) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		return errDown
	}
	i.batches = append(i.batches, batch)
	return nil
}

func (i *inbox) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *inbox) all() []core.Batch {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.batches)
}

func (i *inbox) events() (all []core.Numbered) {
	for _, batch := range i.all() {
		all = append(all, batch.Events...)
	}
	return all
}

func (i *inbox) beats() (all []core.Heartbeat) {
	for _, batch := range i.all() {
		if batch.Heartbeat != nil {
			all = append(all, *batch.Heartbeat)
		}
	}
	return all
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
			ID: "e-kyma-heartbeat-4", Time: time.Now(), Number: 4, Interval: outbox.Defaults().HeartbeatInterval,
			Sequence: 1, Leaving: true, Dropped: map[string]int64{},
		}
		if diff := gocmp.Diff(want, beats[3]); diff != "" {
			t.Errorf("last heartbeat (-want +got):\n%s", diff)
		}
		resync := in.events()[0]
		if !resync.Resync || in.all()[1].Epoch != "e" || resync.Sequence != 1 {
			t.Errorf("first event %+v, want a resync with number 1", resync)
		}
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
		if first.Pending != 3 || first.OldestPending < time.Minute || first.Dropped["overflow"] != 1 ||
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

// A heartbeat that is on its way when the process ends is not the last one.
func TestLeaveFollowsAHeartbeatThatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		slow := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			time.Sleep(time.Second)
			return in.Forward(ctx, manager, batch)
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

// The last heartbeat names the resends that are not sent any more, so that the receiver asks for a resync in time.
func TestLeaveNamesTheResendsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{
			Managers: []core.Manager{kyma}, Epoch: "e", DrainTimeout: 5 * time.Second,
			ResendResync: outbox.Defaults().ResendResync,
		})
		time.Sleep(time.Second)
		o.Resync()
		time.Sleep(time.Second)
		stop()
		beats := in.beats()
		if last := beats[len(beats)-1]; !last.Leaving || last.Pending != 1 {
			t.Errorf("last heartbeat %+v, want it to leave one resend", last)
		}
	})
}

// A manager that cannot be reached does not keep the others from their last heartbeats, which come at once.
func TestLeaveBesideAManagerThatCannotBeReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, start := &inbox{}, time.Time{}
		forwarder := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if manager == "dead" {
				return errDown
			}
			if batch.Heartbeat != nil && batch.Heartbeat.Leaving && time.Since(start) > time.Second {
				t.Errorf("the last heartbeat came %v after the end, want at once", time.Since(start))
			}
			return in.Forward(ctx, manager, batch)
		})
		o, stop := run(t, forwarder, outbox.Options{
			Managers: []core.Manager{kyma, "dead"}, Epoch: "e", DrainTimeout: 5 * time.Second, Resend: []time.Duration{},
		})
		o.Accept(kyma, named("a"))
		o.Accept("dead", named("a"))
		time.Sleep(10 * time.Second)
		start = time.Now()
		stop()
		beats := in.beats()
		if last := beats[len(beats)-1]; !last.Leaving || last.Pending != 0 {
			t.Errorf("last heartbeat %+v, want it to leave", last)
		}
	})
}

func TestEpochNeedsOneCallAtATime(t *testing.T) {
	_, err := outbox.New(&inbox{}, outbox.Options{Epoch: "e", InFlight: 2})
	if want := "outbox: option InFlight is 2, want more than 0, and 1 with an Epoch"; err == nil || err.Error() != want {
		t.Errorf("two calls at a time with numbers: %v, want %s", err, want)
	}
}

// A heartbeat that comes back, as the contract in use carries none, says nothing of a manager that
// takes no events.
func TestAHeartbeatThatComesBackIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(func(_ context.Context, n int, batch core.Batch) error {
			switch {
			case n == 0:
				return errDown
			case len(batch.Events) == 0:
				return core.EventErrors{0: verdict{reason: "no_heartbeats", permanent: true}}
			default:
				return nil
			}
		})
		o, stop := run(t, p, outbox.Options{
			Epoch: "e", HeartbeatInterval: time.Minute, Managers: []core.Manager{kyma}, Logger: log.logger(),
		})
		again := func() bool { return strings.Contains(log.String(), "takes events again") }
		time.Sleep(time.Hour)
		synctest.Wait()
		calls, paused := len(p.seen()), strings.Contains(log.String(), "does not take events")
		if calls < 50 || calls > 70 || !paused || again() {
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

// A heartbeat that is refused, by the receiver or because it cannot be sent, is logged and sent
// again at its interval. It delays no event.
func TestRefusedHeartbeatIsSentAtItsInterval(t *testing.T) {
	for name, refuse := range map[string]func(batch core.Batch) error{
		"for now":        func(batch core.Batch) error { return core.EventErrors{len(batch.Events): errNoOwner} },
		"for ever":       func(batch core.Batch) error { return core.EventErrors{len(batch.Events): errRefused} },
		"with its batch": func(core.Batch) error { return errRefused },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logBuffer
				start := time.Now()
				p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
					switch passed := time.Since(start); {
					case passed < time.Second:
						return errDown
					case batch.Heartbeat != nil && passed < time.Hour:
						return refuse(batch)
					default:
						return nil
					}
				})
				o, stop := run(t, p, outbox.Options{
					Epoch: "e", Managers: []core.Manager{kyma}, Settle: -1, MaxBatch: 10, Logger: log.logger(),
				})
				o.Accept(kyma, named("b"))
				time.Sleep(2 * time.Second) // The outage is over, and b was in the batch of a heartbeat.
				for range 60 {
					o.Accept(kyma, named("a"))
					time.Sleep(time.Minute)
				}
				if c := o.Counts()[kyma]; c.Accepted != 61 || c.Delivered != 61 {
					t.Errorf("counts %+v, want all delivered", c)
				}
				beats := 0
				for _, call := range p.seen() {
					if slices.Contains(call.Names, "heartbeat") {
						beats++
					}
				}
				if beats < 120 || beats > 145 {
					t.Errorf("%d heartbeats in an hour, want one in 30 s, up to a tenth more, and those of the outage", beats)
				}
				if n := strings.Count(log.String(), "heartbeat refused"); n < 12 || n > 14 {
					t.Errorf("%d lines, want one in 5 min:\n%s", n, &log)
				}
				time.Sleep(time.Minute)
				stop()
				if calls := p.seen(); !slices.Contains(calls[len(calls)-1].Names, "heartbeat") {
					t.Errorf("last call %v, want a heartbeat that takes leave", calls[len(calls)-1])
				}
			})
		})
	}
}

// The source of the heartbeat's fields may take a lock, or call the outbox: Accept does not wait
// for it.
func TestHeartbeatIsMadeWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o *outbox.Outbox
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{
			Epoch: "e",
			Heartbeat: func(manager core.Manager) core.Heartbeat {
				o.Accept(manager, named("a"))
				time.Sleep(time.Second)
				return core.Heartbeat{Instance: "pod-1", Number: 99, Sequence: 99}
			},
		})
		o.Accept(kyma, named("first")) // From now on there are heartbeats.
		time.Sleep(500 * ms)
		began := time.Now()
		o.Accept(kyma, named("b"))
		if took := time.Since(began); took > 0 {
			t.Errorf("Accept took %v while a heartbeat is made, want no wait", took)
		}
		time.Sleep(time.Second)
		beats := in.beats()
		if len(beats) != 1 || beats[0].Instance != "pod-1" || beats[0].Number != 1 || beats[0].Sequence != 0 {
			t.Errorf("heartbeats %+v, want one with the fields of both", beats)
		}
		stop()
	})
}

// A number that is lost with its event, as that gave way to another one, does not end the
// heartbeats.
func TestLostNumberDoesNotEndTheHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &inbox{down: true}
		o, stop := run(t, in, outbox.Options{Epoch: "e", MaxBatch: 100, MaxKeys: 10, HeartbeatInterval: time.Second})
		for i := range 10 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		time.Sleep(time.Minute) // They have their numbers.
		for i := range 4 {
			o.Accept("another", named(strconv.Itoa(i)))
		}
		in.setDown(false)
		time.Sleep(time.Minute)
		if n := len(in.beats()); n < 100 {
			t.Errorf("%d heartbeats of 2 managers in a minute, want about 120", n)
		}
		checkBalance(t, o)
		stop()
	})
}

// A new agent was unproved until its second heartbeat, and a fleet knew of a lost canary after 38 s.
func TestAChangeIsReportedBeforeTheInterval(t *testing.T) {
	proved := time.Now()
	for name, change := range map[string]func(*core.Heartbeat){
		"canary":          func(b *core.Heartbeat) { b.Canary = core.CanaryLost },
		"configuration":   func(b *core.Heartbeat) { b.ConfigHash = "2" },
		"problem":         func(b *core.Heartbeat) { b.ConfigError = "no such kind" },
		"key material":    func(b *core.Heartbeat) { b.KeyMaterialError = "expired" },
		"certificate":     func(b *core.Heartbeat) { b.CertificateFingerprint = "2" },
		"CA bundle":       func(b *core.Heartbeat) { b.CAFingerprints = []string{"1", "2"} },
		"first proof":     func(b *core.Heartbeat) { b.LastReview = proved },
		"webhook refused": func(b *core.Heartbeat) { b.WebhookFailures++ },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				state := &changing{}
				in := &inbox{}
				_, stop := run(t, in, outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e", Heartbeat: state.heartbeat})
				defer stop()
				time.Sleep(10 * time.Second)
				state.change(change)
				time.Sleep(1500 * ms)
				if beats := in.beats(); len(beats) != 2 {
					t.Fatalf("%d heartbeats 1.5 s after the change, want 2", len(beats))
				}
				time.Sleep(20 * time.Second)
				if beats := in.beats(); len(beats) != 2 {
					t.Errorf("%d heartbeats 20 s later, want no further one", len(beats))
				}
			})
		})
	}
}

// A heartbeat follows the end of a connection, for a receiver that sees connections. With a server
// that closes each one, they come at the default interval.
func TestAHeartbeatFollowsTheEndOfAConnection(t *testing.T) {
	for name, test := range map[string]struct {
		first, each, within time.Duration
		most                int
	}{
		"at any time":               {2 * time.Minute, 0, 20 * time.Second, 2},
		"just after a heartbeat":    {time.Second, 0, 31 * time.Second, 2},
		"at each request":           {time.Second, 100 * ms, 31 * time.Second, 9},
		"at the interval, or never": {time.Hour, 0, 0, 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, ended := &inbox{}, atomic.Int64{}
				_, stop := run(t, in, outbox.Options{
					Managers: []core.Manager{kyma}, Epoch: "e", HeartbeatInterval: 5 * time.Minute, Disconnects: ended.Load,
					Random: func() float64 { return 0.9 },
				})
				defer stop()
				time.Sleep(test.first)
				before := len(in.beats())
				if test.within > 0 {
					ended.Add(1)
					time.Sleep(test.within)
					if have := len(in.beats()); have != before+1 {
						t.Errorf("%d heartbeats within %v, want one more than %d", have, test.within, before)
					}
				}
				for range 30 {
					if test.each > 0 {
						ended.Add(1)
					}
					time.Sleep(7 * time.Second)
				}
				if have := len(in.beats()); have > test.most {
					t.Errorf("%d heartbeats, want at most %d", have, test.most)
				}
			})
		})
	}
}

func TestExtraHeartbeatsHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := &changing{}
		in := &inbox{}
		o, stop := run(t, in, outbox.Options{
			Managers: []core.Manager{kyma}, Epoch: "e", MaxKeys: 1, Heartbeat: state.heartbeat,
		})
		time.Sleep(time.Second)
		for range 60 {
			state.change(func(b *core.Heartbeat) { b.WebhookFailures++ })
			time.Sleep(time.Second)
		}
		losing := len(in.beats())
		if losing > 4 { // At the start, with the first loss, and in each interval.
			t.Errorf("%d heartbeats in a minute of losses, want at most 4", losing)
		}
		for range 60 {
			state.change(func(b *core.Heartbeat) { b.ConfigHash += "." })
			time.Sleep(time.Second)
		}
		if n := len(in.beats()) - losing; n < 10 || n > 14 {
			t.Errorf("%d heartbeats in a minute of changes, want one in 5 s", n)
		}
		in.setDown(true)
		before := len(in.beats())
		o.Accept(kyma, named("a"))
		o.Accept(kyma, named("b")) // No room: a drop.
		time.Sleep(10 * time.Second)
		in.setDown(false)
		time.Sleep(10 * time.Second)
		beats := in.beats()[before:]
		if len(beats) == 0 || beats[0].Dropped["overflow"] == 0 {
			t.Errorf("heartbeats after a drop: %+v, want it named", beats)
		}
		stop()
	})
}

// changing is the state of an agent.
type changing struct {
	mu   sync.Mutex
	beat core.Heartbeat
}

func (c *changing) heartbeat(core.Manager) core.Heartbeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beat
}

func (c *changing) change(f func(*core.Heartbeat)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.beat)
}
