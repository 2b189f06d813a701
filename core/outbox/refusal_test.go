package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

const roundTrip = 10 * ms

// picky is a control plane that refuses some events individually. A call takes a round trip.
type picky struct {
	refuses func(event *core.WatchEvent) error

	mu      sync.Mutex
	arrived map[string]time.Time // the last arrival of each event that was not refused
}

func newPicky(refuses func(event *core.WatchEvent) error) *picky {
	return &picky{refuses: refuses, arrived: make(map[string]time.Time)}
}

func (p *picky) answer(_ context.Context, _ int, batch core.Batch) error {
	time.Sleep(roundTrip)
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := core.EventErrors{}
	for i := range batch.Events {
		event := &batch.Events[i].WatchEvent
		if err := p.refuses(event); err != nil {
			failed[i] = err
		} else {
			p.arrived[nameOf(*event)] = time.Now()
		}
	}

	if len(failed) == 0 {
		return nil
	}
	return failed
}

// refuseBad refuses the events whose names begin with "bad".
func refuseBad(err error) func(*core.WatchEvent) error {
	return func(event *core.WatchEvent) error {
		if strings.HasPrefix(event.Watched.Name, "bad") {
			return err
		}
		return nil
	}
}

// eachContract runs a test with the options that an agent has for each contract.
func eachContract(t *testing.T, test func(t *testing.T, opts outbox.Options)) {
	t.Helper()
	for contract, opts := range map[string]outbox.Options{"v1 and v2": {}, "v3": {MaxBatch: 500, Epoch: "e"}} {
		t.Run(contract, func(t *testing.T) { test(t, opts) })
	}
}

// An object with a wrong owner is refused for ever. It delays no other.
func TestRefusedEventsHoldUpNoOther(t *testing.T) {
	const refused = 1000
	eachContract(t, func(t *testing.T, opts outbox.Options) {
		t.Helper()

		without := p99(t, opts, 0)
		with := p99(t, opts, refused)
		t.Logf("p99 until an event arrives: %v, beside %d that are refused: %v", without, refused, with)
		// A call that is under way ends first.
		if with > without+roundTrip {
			t.Errorf("p99 is %v beside %d refused events, want %v and a round trip at most", with, refused, without)
		}
	})
}

// p99 returns the time until 99 % of good events arrived, beside a number that is refused for ever.
func p99(t *testing.T, opts outbox.Options, refused int) time.Duration {
	t.Helper()

	p := newPicky(refuseBad(errNoOwner))
	opts.DrainTimeout = -1
	var took []time.Duration
	inBubble(t, scene{opts: opts, answer: p.answer}, func(w *world) {
		w.writeMany(refused, "bad-", 0)
		began := time.Now()
		const good, pause = 4000, 47 * ms
		w.writeMany(good, "good-", pause)
		time.Sleep(time.Minute)
		w.stop()

		for i := range good {
			took = append(took, p.arrived[numbered("good-", i)].Sub(began.Add(time.Duration(i)*pause)))
		}
	})

	slices.Sort(took)
	return took[len(took)*99/100]
}

// Events that are refused for ever are dropped for one resync without owner and one log line.
func TestRefusedEventsAreGivenUpForOneResync(t *testing.T) {
	eachContract(t, func(t *testing.T, opts outbox.Options) {
		t.Helper()

		opts.Random = jitter(1)
		inBubble(t, scene{opts: opts, answer: newPicky(refuseBad(errNoOwner)).answer}, func(w *world) {
			w.writeMany(1000, "bad-", 0)
			time.Sleep(4*time.Minute + 59*second)
			w.wantCounts(outbox.Counts{Accepted: 1000, Pending: 1000})

			time.Sleep(time.Minute)
			synctest.Wait()
			w.wantCounts(outbox.Counts{Accepted: 1001, Delivered: 1, Dropped: map[core.Reason]int64{"owner_missing": 1000}})
			w.wantBetween(1, w.log.count("given up"), 1, "lines for one reason")
		})
	})
}

// Events that are refused all the time do not make the operator look at the runtime all the time.
func TestStreamOfRefusalsHasFewResyncs(t *testing.T) {
	p := newPicky(refuseBad(errRefused))
	opts := outbox.Options{ResendResync: outbox.Defaults().ResendResync}
	inBubble(t, scene{opts: opts, answer: p.answer}, func(w *world) {
		w.writeMany(6000, "bad-", 100*ms)
		last := time.Now()
		time.Sleep(time.Minute)
		w.stop()
		w.wantBetween(10, w.count("resync"), 35, "resyncs in 10 min of refusals, one in MaxBackoff")
		if at := p.arrived["resync"]; at.Before(last) {
			t.Errorf("the last resync arrived %v before the last refusal, want it after", last.Sub(at))
		}

		if c := w.Counts()[kyma]; c.Dropped["malformed"] != 6000 || c.Pending != 0 {
			t.Errorf("counts %+v, want 6000 dropped", c)
		}
	})
}

// Nothing replaces a resync, so it is sent until the manager takes it, at the pace of other
// refused events.
func TestRefusedResyncDoesNotLoop(t *testing.T) {
	eachContract(t, func(t *testing.T, opts outbox.Options) {
		t.Helper()

		opts.GiveUpAfter = time.Minute
		inBubble(t, scene{opts: opts, answer: newPicky(func(*core.WatchEvent) error {
			if elapsed() < time.Hour {
				return errNoOwner
			}
			return nil
		}).answer}, func(w *world) {
			w.writeMany(100, "", 0)
			dropped := map[core.Reason]int64{"owner_missing": 100}
			time.Sleep(time.Hour)
			w.wantBetween(300, w.count("resync"), 400, "resyncs in an hour, about one in 10 s: half of 20 s is not random")
			w.wantCounts(outbox.Counts{Accepted: 101, Pending: 1, Dropped: dropped})

			time.Sleep(outbox.Defaults().MaxBackoff)
			w.wantCounts(outbox.Counts{Accepted: 101, Delivered: 1, Dropped: dropped})
		})
	})
}

// An owner may be the reason for a refusal. Its resync shows whether it is.
func TestRefusedOwnerIsForgotten(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{ResyncOwners: true}, answer: newPicky(func(event *core.WatchEvent) error {
		if event.Owner.Name == "wrong" || event.Watched.Name == "bad" {
			return errRefused
		}
		return nil
	}).answer}, func(w *world) {
		w.Accept(kyma, ownedBy("wrong", "a"))
		w.Accept(kyma, ownedBy("right", "bad"))
		time.Sleep(time.Minute)

		for _, owner := range []string{"wrong", "right"} {
			w.wantBetween(1, w.count("resync of "+owner), 10, "resyncs of the "+owner+" owner")
		}

		before := w.count("resync of wrong")
		w.Resync()
		time.Sleep(time.Minute)
		w.wantBetween(before, w.count("resync of wrong"), before, "resyncs after that of the owner was refused for ever")
	})
}

// An event because of which a batch was refused travels without others from then on.
func TestEventThatCondemnedABatchStaysAlone(t *testing.T) {
	inBubble(t, scene{
		opts: outbox.Options{MaxBatch: 10, InFlight: 1, DrainTimeout: -1},
		answer: func(_ context.Context, _ int, batch core.Batch) error {
			switch {
			case !slices.Contains(names(batch), "bad"):
				return nil
			case len(batch.Events) == 1:
				return core.EventErrors{0: errNoOwner}
			default:
				return errRefused
			}
		},
	}, func(w *world) {
		w.write("bad")
		w.writeMany(1000, "good-", 10*ms)
		time.Sleep(second)
		together := 0
		for _, call := range w.seen() {
			if slices.Contains(call.Names, "bad") && len(call.Names) > 1 {
				together++
			}
		}

		w.wantBetween(0, together, 1, "batches were refused because of one event")
		w.wantCounts(outbox.Counts{Accepted: 1001, Delivered: 1000, Pending: 1})
	})
}

// An event of a batch that was refused as a whole is sent alone. When it is refused individually
// then, a busy manager does not hold it up.
func TestEventThatWasAloneIsRetriedBesideOthers(t *testing.T) {
	bad := newPicky(refuseBad(core.ErrForbidden))
	large := true
	inBubble(t, scene{
		opts: outbox.Options{MaxBatch: 500, Epoch: "e", GiveUpAfter: time.Minute, DrainTimeout: -1},
		answer: func(ctx context.Context, n int, batch core.Batch) error {
			if large && len(batch.Events) > 1 {
				large = false
				return errRefused
			}
			return bad.answer(ctx, n, batch)
		},
	}, func(w *world) {
		w.write("bad", "good")
		w.writeMany(20_000, "object-", 5*ms) // There is always one to send.
		w.wantBetween(5, w.count("bad"), 1000, "attempts for the refused event in 100 s")
		if c := w.Counts()[kyma]; c.Dropped["forbidden"] != 1 {
			t.Errorf("counts %+v, want that the refused event is given up", c)
		}
	})
}

// Events that travel alone because a batch with them was refused take turns with the others, also
// when there is always one that is due.
func TestEventsThatTravelAloneTakeTurns(t *testing.T) {
	const bad = 50
	inBubble(t, scene{
		opts: outbox.Options{InFlight: 1, MaxBatch: 100, MaxBackoff: 400 * ms, DrainTimeout: -1},
		answer: func(_ context.Context, _ int, batch core.Batch) error {
			time.Sleep(100 * ms)
			switch {
			case batch.Events[0].Watched.Name == "good":
				return nil
			case len(batch.Events) > 1:
				return verdict{reason: "too_large", permanent: true}
			default:
				return core.EventErrors{0: verdict{reason: "other"}}
			}
		},
	}, func(w *world) {
		w.writeMany(bad, "bad-", 0)
		time.Sleep(30 * second)
		w.write("good")
		time.Sleep(second)
		w.wantCounts(outbox.Counts{Accepted: bad + 1, Delivered: 1, Pending: bad})
	})
}

// cutting returns a forwarder that sends only the beginning of a batch.
func cutting(limit int) func(p *plane) core.Forwarder {
	return func(p *plane) core.Forwarder {
		return core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			unsent := core.EventErrors{}
			if len(batch.Events) > limit {
				for i := limit; i < len(batch.Events); i++ {
					unsent[i] = core.ErrNotSent
				}

				if batch.Heartbeat != nil {
					unsent[len(batch.Events)] = fmt.Errorf("heartbeat: %w", core.ErrNotSent)
				}
				batch.Events = batch.Events[:limit]
				batch.Heartbeat = nil
			}

			if err := p.Forward(ctx, manager, batch); err != nil || len(unsent) == 0 {
				return err
			}
			return unsent
		})
	}
}

// Events that stay behind when a batch is cut keep their order and their numbers. A heartbeat has a
// number that the receiver has seen, and comes as soon as the batch is not cut any more.
func TestHeartbeatFollowsItsNumbers(t *testing.T) {
	opts := outbox.Options{Epoch: "e", MaxBatch: 500, HeartbeatInterval: second, Settle: second}
	inBubble(t, scene{opts: opts, via: cutting(2)}, func(w *world) {
		w.writeMany(20, "object-", 0)
		time.Sleep(second + 500*ms)
		var seen uint64
		for _, batch := range w.taken() {
			for _, event := range batch.Events {
				seen++
				if event.Sequence != seen {
					t.Errorf("event %d arrived as number %d", event.Sequence, seen)
				}
			}
			if beat := batch.Heartbeat; beat != nil && beat.Sequence != seen {
				t.Errorf("heartbeat names %d, but %d was the last to arrive", beat.Sequence, seen)
			}
		}

		if beats := w.beats(); len(beats) != 2 || beats[1].Sequence != 20 {
			t.Errorf("heartbeats %+v, want one at the start and one after the 20 events", beats)
		}
	})
}

// A forwarder that sends nothing at all is not called without a wait.
func TestBatchOfWhichNothingWasSentIsAFailure(t *testing.T) {
	opts := outbox.Options{
		Epoch: "e", MaxBatch: 500, Managers: []core.Manager{kyma}, HeartbeatInterval: second, DrainTimeout: -1,
	}
	for name, events := range map[string]int{"events": 5, "heartbeat": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, scene{opts: opts, answer: func(_ context.Context, _ int, batch core.Batch) error {
				unsent := core.EventErrors{}
				for i := range len(batch.Events) + 1 {
					unsent[i] = core.ErrNotSent
				}
				return unsent
			}}, func(w *world) {
				w.writeMany(events, "object-", 0)
				time.Sleep(10 * time.Minute)
				w.wantBetween(40, len(w.seen()), 80, "calls in 10 min, about one in 10 s")
			})
		})
	}
}
