package outbox_test

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

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// known are options with heartbeats from the start on.
func known() outbox.Options { return outbox.Options{Managers: []core.Manager{kyma}, Epoch: "e"} }

// changing is the state of an agent, from which its heartbeats are made.
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

func TestKnownManagersGetAResyncAndHeartbeats(t *testing.T) {
	opts := known()
	opts.ResyncFirst = true
	inBubble(t, scene{opts: opts}, func(w *world) {
		time.Sleep(time.Minute + second)
		w.stop()
		w.wantBetween(4, len(w.beats()), 4, "heartbeats, at 0, 30 and 60 s, and the last one")
		want := core.Heartbeat{
			ID: "e-kyma-heartbeat-4", Time: time.Now(), Number: 4, Interval: outbox.Defaults().HeartbeatInterval,
			Sequence: 1, Leaving: true, Dropped: map[core.Reason]int64{},
		}
		if diff := gocmp.Diff(want, w.lastBeat()); diff != "" {
			t.Errorf("last heartbeat (-want +got):\n%s", diff)
		}

		if first := w.events()[0]; !first.Resync || first.Sequence != 1 || w.taken()[1].Epoch != "e" {
			t.Errorf("first event %+v, want a resync with number 1", first)
		}
	})
}

// The first heartbeat after an outage reports the pending and dropped events, the last one that
// nothing is pending.
func TestHeartbeatTellsHowTheOutboxFares(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{
		Epoch: "e", MaxKeys: 2, MaxBatch: 10,
		Heartbeat: func(core.Manager) core.Heartbeat { return core.Heartbeat{Instance: "pod-1", Canary: core.CanaryAlive} },
	}}, func(w *world) {
		w.setDown(true)
		w.write("a", "b", "c")
		time.Sleep(time.Minute)
		w.setDown(false)
		time.Sleep(time.Minute)
		beats := w.beats()
		w.wantBetween(2, len(beats), 4, "heartbeats after the outage, as they must not pile up")

		first := beats[0]
		if first.Pending != 3 || first.OldestPending < time.Minute || first.Dropped["overflow"] != 1 ||
			first.Instance != "pod-1" || first.Canary != core.CanaryAlive {
			t.Errorf("first heartbeat %+v, want 3 pending for a minute and 1 dropped", first)
		}

		if last := w.lastBeat(); last.Pending != 0 || last.Sequence != 3 {
			t.Errorf("last heartbeat %+v, want nothing pending after 3 events", last)
		}
	})
}

// A heartbeat that is on its way when the process ends is not the last one.
func TestLeaveFollowsAHeartbeatThatIsOnItsWay(t *testing.T) {
	inBubble(t, scene{
		opts:   known(),
		answer: func(context.Context, int, core.Batch) error { time.Sleep(second); return nil },
	}, func(w *world) {
		time.Sleep(500 * ms) // The first is on its way.
		w.stop()
		if beats := w.beats(); len(beats) != 2 || beats[0].Leaving || !beats[1].Leaving {
			t.Errorf("heartbeats %+v, want one, and the last one", beats)
		}
	})
}

// The last heartbeat names the resends that are not sent any more, so that the receiver asks for a
// resync in time. The end of a process does not wait for them.
func TestLeaveNamesTheResendsThatWait(t *testing.T) {
	event := func(w *world) { w.write("a") }
	for name, test := range map[string]struct {
		sends func(w *world)
		after time.Duration
		left  int64
	}{
		"of an event":            {event, second, 1},
		"of an event, were sent": {event, 4 * second, 0},
		"of a resync":            {func(w *world) { w.Resync() }, second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			opts := known()
			opts.Resend = []time.Duration{3 * second}
			opts.ResendResync = outbox.Defaults().ResendResync
			inBubble(t, scene{opts: opts}, func(w *world) {
				test.sends(w)
				time.Sleep(test.after)
				stopped(0)(w)
				if last := w.lastBeat(); !last.Leaving || last.Pending != test.left {
					t.Errorf("last heartbeat %+v, want it to leave %d resends", last, test.left)
				}

				if got := w.Counts()[kyma]; got.Accepted != got.Delivered || got.Pending != 0 {
					t.Errorf("counts %+v, want all delivered", got)
				}
			})
		})
	}
}

// A manager that cannot be reached does not keep the others from their last heartbeats, which come
// immediately.
func TestLeaveBesideAManagerThatCannotBeReached(t *testing.T) {
	var began time.Time
	inBubble(t, scene{opts: outbox.Options{
		Managers: []core.Manager{kyma, "dead"}, Epoch: "e", DrainTimeout: 5 * second,
	}, via: func(p *plane) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if manager == "dead" {
				return errDown
			}
			if batch.Heartbeat != nil && batch.Heartbeat.Leaving && time.Since(began) > second {
				t.Errorf("the last heartbeat came %v after the end, want at once", time.Since(began))
			}
			return p.Forward(ctx, manager, batch)
		})
	}}, func(w *world) {
		w.write("a")
		w.Accept("dead", named("a"))
		time.Sleep(10 * second)
		began = time.Now()
		w.stop()

		if last := w.lastBeat(); !last.Leaving || last.Pending != 0 {
			t.Errorf("last heartbeat %+v, want it to leave", last)
		}
	})
}

// A heartbeat that comes back, as the contract in use carries none, says nothing of a manager that
// takes no events.
func TestAHeartbeatThatComesBackIsNoSignOfLife(t *testing.T) {
	opts := known()
	opts.HeartbeatInterval = time.Minute
	inBubble(t, scene{opts: opts, answer: func(_ context.Context, n int, batch core.Batch) error {
		switch {
		case n == 0:
			return errDown
		case len(batch.Events) == 0:
			return core.EventErrors{0: verdict{reason: "no_heartbeats", permanent: true}}
		default:
			return nil
		}
	}}, func(w *world) {
		wantLines := func(paused, again int) {
			t.Helper()

			synctest.Wait()
			if w.log.count("does not accept events") != paused || w.log.count("accepts events again") != again {
				t.Errorf("want %d pauses and %d ends in the log:\n%s", paused, again, &w.log)
			}
		}

		time.Sleep(time.Hour)
		w.wantBetween(50, len(w.seen()), 70, "calls")
		wantLines(1, 0)

		w.write("a")
		time.Sleep(second)
		wantLines(1, 1)
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
			opts := known()
			opts.Settle = -1
			opts.MaxBatch = 10
			inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
				switch passed := elapsed(); {
				case passed < second:
					return errDown
				case batch.Heartbeat != nil && passed < time.Hour:
					return refuse(batch)
				default:
					return nil
				}
			}}, func(w *world) {
				w.write("b")
				time.Sleep(2 * second) // The outage is over, and b was in the batch of a heartbeat.
				for range 60 {
					w.write("a")
					time.Sleep(time.Minute)
				}

				w.wantDelivered(61)
				w.wantBetween(120, w.count("heartbeat"), 145, "heartbeats in an hour, one in 30 s, a tenth more, and those of the outage")
				w.wantBetween(12, w.log.count("heartbeat refused"), 14, "lines, one in 5 min")

				time.Sleep(time.Minute)
				w.stop()
				if calls := w.seen(); !slices.Contains(calls[len(calls)-1].Names, "heartbeat") {
					t.Errorf("last call %v, want a heartbeat that takes leave", calls[len(calls)-1])
				}
			})
		})
	}
}

// The source of the heartbeat's fields may take a lock, or call the outbox: Accept does not wait
// for it.
func TestHeartbeatIsMadeWithoutTheLock(t *testing.T) {
	var box *outbox.Outbox
	inBubble(t, scene{opts: outbox.Options{Epoch: "e", Heartbeat: func(manager core.Manager) core.Heartbeat {
		box.Accept(manager, named("a"))
		time.Sleep(second)
		return core.Heartbeat{Instance: "pod-1", Number: 99, Sequence: 99}
	}}}, func(w *world) {
		box = w.Outbox
		w.write("first") // From now on there are heartbeats.
		time.Sleep(500 * ms)
		if took := took(func() { w.write("b") }); took > 0 {
			t.Errorf("Accept took %v while a heartbeat is made, want no wait", took)
		}

		time.Sleep(second)
		beats := w.beats()
		if len(beats) != 1 || beats[0].Instance != "pod-1" || beats[0].Number != 1 || beats[0].Sequence != 0 {
			t.Errorf("heartbeats %+v, want one with the fields of both", beats)
		}
	})
}

// A new agent was unproved until its second heartbeat, and a fleet knew of a lost canary after 38
// s.
func TestAChangeIsReportedBeforeTheInterval(t *testing.T) {
	proved := time.Now()
	for name, change := range map[string]func(*core.Heartbeat){
		"canary":          func(b *core.Heartbeat) { b.Canary = core.CanaryLost },
		"configuration":   func(b *core.Heartbeat) { b.ConfigHash = "2" },
		"problem":         func(b *core.Heartbeat) { b.ConfigError = "no such kind" },
		"webhooks":        func(b *core.Heartbeat) { b.WebhookError = "one is missing" },
		"key material":    func(b *core.Heartbeat) { b.KeyMaterialError = "expired" },
		"certificate":     func(b *core.Heartbeat) { b.CertificateFingerprint = "2" },
		"CA bundle":       func(b *core.Heartbeat) { b.CAFingerprints = []string{"1", "2"} },
		"first proof":     func(b *core.Heartbeat) { b.LastReview = proved },
		"webhook refused": func(b *core.Heartbeat) { b.WebhookFailures++ },
	} {
		t.Run(name, func(t *testing.T) {
			state := &changing{}
			opts := known()
			opts.Heartbeat = state.heartbeat
			inBubble(t, scene{opts: opts}, func(w *world) {
				time.Sleep(10 * second)
				state.change(change)
				for _, after := range []time.Duration{1500 * ms, 20 * second} {
					time.Sleep(after)
					w.wantBetween(2, len(w.beats()), 2, "heartbeats, the second within 1.5 s")
				}
			})
		})
	}
}

// No heartbeat arrives while the manager cannot be reached. The next ones say why, and for how
// long. A short interruption replaces no long one.
func TestHeartbeatsReportAnInterruption(t *testing.T) {
	long := fmt.Errorf("proxy is down: %w", verdict{reason: "proxy_unreachable"})
	opts := known()
	opts.Settle = -1
	opts.MaxBackoff = 2 * second
	opts.Random = random(0)

	inBubble(t, scene{opts: opts, answer: func(context.Context, int, core.Batch) error {
		switch at := elapsed(); {
		case at >= 40*second && at < 95*second:
			return long
		case at >= 130*second && at < 130*second+300*ms:
			return errDown
		default:
			return nil
		}
	}}, func(w *world) {
		time.Sleep(35 * second)
		for _, beat := range w.beats() {
			if beat.Interruption != (core.Interruption{}) {
				t.Errorf("interruption %+v before there was one", beat.Interruption)
			}
		}

		time.Sleep(5 * second)
		w.write("a")
		time.Sleep(90 * second)
		w.write("b")
		time.Sleep(40 * second)
		beats := w.beats()

		got := beats[len(beats)-1].Interruption
		if got.Reason != "proxy_unreachable" || got.Error != long.Error() {
			t.Errorf("%+v, want the reason and the text of the failure", got)
		}
		w.wantBetween(54, int(got.Until.Sub(got.Since)/second), 57, "seconds of the interruption")
	})
}

// Nothing follows the last heartbeat to a manager, also while the events for another manager are
// sent. A fleet would take the process for a new one.
func TestNoResyncFollowsTheLastHeartbeat(t *testing.T) {
	const slow core.Manager = "slow"
	synctest.Test(t, func(t *testing.T) {
		var after []core.Batch // the last heartbeat. One call follows the other.
		hasLeft := false
		opts := known()
		opts.Managers = append(opts.Managers, slow)
		o := newOutbox(t, core.ForwarderFunc(func(_ context.Context, manager core.Manager, batch core.Batch) error {
			switch {
			case manager == slow && len(batch.Events) > 0:
				time.Sleep(5 * second)
			case manager == kyma && hasLeft:
				after = append(after, batch)
			case manager == kyma:
				hasLeft = batch.Heartbeat != nil && batch.Heartbeat.Leaving
			}
			return nil
		}), opts)

		stop := startOutbox(t, o)
		time.Sleep(second)
		o.Accept(slow, named("a"))
		time.Sleep(200 * ms)
		go func() {
			time.Sleep(second)
			o.Resync()
		}()
		stop()

		if !hasLeft || len(after) > 0 {
			t.Errorf("last heartbeat sent: %v, followed by %+v", hasLeft, after)
		}
		if got := o.Counts()[kyma].Dropped[outbox.ReasonShutdown]; got != 1 {
			t.Errorf("%d events dropped for the shutdown, want the resync", got)
		}
	})
}

// A call of Retry begins the waits again. The interruption is as long as it was, also if the
// manager is back after one more failure.
func TestRetryShortensNoInterruption(t *testing.T) {
	opts := known()
	opts.Settle = -1
	opts.MaxBackoff = 2 * second
	opts.Random = random(0)
	inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, _ core.Batch) error {
		if at := elapsed(); at >= 40*second && at < 95*second {
			return errDown
		}
		return nil
	}}, func(w *world) {
		time.Sleep(40 * second)
		w.write("a")
		time.Sleep(54*second + 900*ms)
		w.Retry()
		time.Sleep(40 * second)
		got := w.lastBeat().Interruption
		w.wantBetween(54, int(got.Until.Sub(got.Since)/second), 57, "seconds of the interruption")
	})
}

// A heartbeat follows the end of a connection, for a receiver that sees connections. With a server
// that closes each one, they come at the default interval.
func TestAHeartbeatFollowsTheEndOfAConnection(t *testing.T) {
	for name, test := range map[string]struct {
		first, each, within time.Duration
		most                int
	}{
		"at any time":               {2 * time.Minute, 0, 20 * second, 2},
		"just after a heartbeat":    {second, 0, 31 * second, 2},
		"at each request":           {second, 100 * ms, 31 * second, 9},
		"at the interval, or never": {time.Hour, 0, 0, 15},
	} {
		t.Run(name, func(t *testing.T) {
			ended := atomic.Int64{}
			opts := known()
			opts.HeartbeatInterval = 5 * time.Minute
			opts.Disconnects = ended.Load
			opts.Random = random(0.9)

			inBubble(t, scene{opts: opts}, func(w *world) {
				time.Sleep(test.first)
				if before := len(w.beats()); test.within > 0 {
					ended.Add(1)
					time.Sleep(test.within)
					w.wantBetween(before+1, len(w.beats()), before+1, "heartbeats in time")
				}

				for range 30 {
					if test.each > 0 {
						ended.Add(1)
					}
					time.Sleep(7 * second)
				}

				w.wantBetween(0, len(w.beats()), test.most, "heartbeats")
			})
		})
	}
}

// A change is reported early, but a value that changes all the time costs one heartbeat in 5 s.
func TestExtraHeartbeatsHaveAPace(t *testing.T) {
	state := &changing{}
	opts := known()
	opts.MaxKeys = 1
	opts.Heartbeat = state.heartbeat
	inBubble(t, scene{opts: opts}, func(w *world) {
		during := func(change func(*core.Heartbeat)) int {
			before := len(w.beats())
			for range 60 {
				state.change(change)
				time.Sleep(second)
			}

			return len(w.beats()) - before
		}

		time.Sleep(second)
		w.wantBetween(1, during(func(b *core.Heartbeat) { b.WebhookFailures++ }), 3,
			"heartbeats in a minute of losses, with the first loss, and in each interval")
		w.wantBetween(10, during(func(b *core.Heartbeat) { b.ConfigHash += "." }), 14,
			"heartbeats in a minute of changes, one in 5 s")

		w.setDown(true)
		before := len(w.beats())
		w.write("a", "b") // No room for the second: a drop.
		time.Sleep(10 * second)
		w.setDown(false)
		time.Sleep(10 * second)

		if beats := w.beats()[before:]; len(beats) == 0 || beats[0].Dropped["overflow"] == 0 {
			t.Errorf("heartbeats after a drop: %+v, want it named", beats)
		}
	})
}

// After an outage the control plane may be a new process, which knows nothing of this runtime. A
// heartbeat must not wait for the next interval. The first one travels with the events that waited,
// and reports them as pending. If they have waited for long, the next one must follow immediately:
// a runtime with old events is degraded until then.
func TestHeartbeatFollowsAnOutage(t *testing.T) {
	for name, test := range map[string]struct {
		outage time.Duration
		writes []string // one batch each
		most   int
	}{
		"short":             {second, []string{"a"}, 1},
		"long":              {2 * time.Minute, []string{"a"}, 2},
		"long, two batches": {2 * time.Minute, []string{"a", "b"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			opts := known()
			opts.HeartbeatInterval = 5 * time.Minute
			inBubble(t, scene{opts: opts}, func(w *world) {
				time.Sleep(second)
				w.setDown(true)
				w.write(test.writes...)
				time.Sleep(test.outage)
				w.setDown(false)
				before := len(w.beats())
				time.Sleep(outbox.Defaults().MaxBackoff + 10*second)
				w.wantBetween(1, len(w.beats())-before, test.most, "heartbeats soon after an outage")
				if last := w.lastBeat(); last.OldestPending > second {
					t.Errorf("the last heartbeat reports an event that is pending for %s, want none", last.OldestPending)
				}
			})
		})
	}
}

// A middlebox may cut each connection after its first request. The heartbeat after a recovery then
// fails, too. Heartbeats must not follow each other several times a second.
func TestHeartbeatDoesNotFollowItself(t *testing.T) {
	inBubble(t, scene{opts: known(), answer: func(_ context.Context, n int, _ core.Batch) error {
		if n%2 == 1 {
			return errors.New("connection reset by peer")
		}
		return nil
	}}, func(w *world) {
		w.write("a")
		time.Sleep(time.Minute)
		before := len(w.seen())
		time.Sleep(10 * time.Minute)
		w.wantBetween(20, len(w.seen())-before, 2*23, "attempts in 10 minutes without events, two for each heartbeat")
	})
}
