package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

const roundTrip = 10 * ms

// picky is a control plane that refuses some events for themselves. A call takes a round trip.
type picky struct {
	refuses func(event *core.WatchEvent) error

	mu      sync.Mutex
	arrived map[string]time.Time // the last arrival of each event that was not refused
	sent    map[string]int       // how often each event was sent
}

func newPicky(refuses func(event *core.WatchEvent) error) *picky {
	return &picky{refuses: refuses, arrived: make(map[string]time.Time), sent: make(map[string]int)}
}

func (p *picky) Forward(_ context.Context, _ core.Manager, batch core.Batch) error {
	time.Sleep(roundTrip)
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := core.EventErrors{}
	for i := range batch.Events {
		event := &batch.Events[i].WatchEvent
		p.sent[nameOf(*event)]++
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

func (p *picky) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[name]
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

// contracts are the options that an agent has for each contract.
func contracts() map[string]outbox.Options {
	return map[string]outbox.Options{
		"v1 and v2": {},
		"v3":        {MaxBatch: 500, Epoch: "e"},
	}
}

// An object with a wrong owner is refused for ever. It delays no other.
func TestRefusedEventsHoldUpNoOther(t *testing.T) {
	const refused = 1000
	for contract, opts := range contracts() {
		t.Run(contract, func(t *testing.T) {
			without, with := p99(t, opts, 0), p99(t, opts, refused)
			t.Logf("p99 until an event arrives: %v, beside %d that are refused: %v", without, refused, with)
			// A call that is under way ends first.
			if with > without+roundTrip {
				t.Errorf("p99 is %v beside %d refused events, want %v and a round trip at most", with, refused, without)
			}
		})
	}
}

// p99 returns the time until 99 % of good events arrived, beside a number that is refused for ever.
func p99(t *testing.T, opts outbox.Options, refused int) (result time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(refuseBad(errNoOwner))
		opts.DrainTimeout = -1
		o, stop := run(t, p, opts)
		for i := range refused {
			o.Accept(kyma, named(fmt.Sprint("bad-", i)))
		}
		accepted := make(map[string]time.Time)
		for i := range 4000 {
			name := fmt.Sprint("good-", i)
			accepted[name] = time.Now()
			o.Accept(kyma, named(name))
			time.Sleep(47 * ms)
		}
		time.Sleep(time.Minute)
		stop()
		var took []time.Duration
		for name, at := range accepted {
			took = append(took, p.arrived[name].Sub(at))
		}
		slices.Sort(took)
		result = took[len(took)*99/100]
	})
	return result
}

// Events that are refused for ever are dropped for one resync without owner and one log line.
func TestRefusedEventsAreGivenUpForOneResync(t *testing.T) {
	for contract, opts := range contracts() {
		t.Run(contract, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logBuffer
				p := newPicky(refuseBad(errNoOwner))
				opts.Logger = log.logger()
				opts.Random = jitter(1)
				o, stop := run(t, p, opts)
				for i := range 1000 {
					o.Accept(kyma, named(fmt.Sprint("bad-", i)))
				}
				time.Sleep(4*time.Minute + 59*time.Second)
				if c := o.Counts()[kyma]; c.Pending != 1000 {
					t.Errorf("counts %+v after almost 5 min, want all pending", c)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				wantCounts(t, o, outbox.Counts{Accepted: 1001, Delivered: 1, Dropped: map[string]int64{"owner_missing": 1000}})
				if n := strings.Count(log.String(), "given up"); n != 1 {
					t.Errorf("%d lines for one reason, want 1:\n%s", n, &log)
				}
				stop()
			})
		})
	}
}

// Events that are refused all the time do not make the operator look at the runtime all the time.
func TestStreamOfRefusalsHasFewResyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(refuseBad(errRefused))
		o, stop := run(t, p, outbox.Options{ResendResync: outbox.Defaults().ResendResync})
		for i := range 6000 {
			o.Accept(kyma, named(fmt.Sprint("bad-", i)))
			time.Sleep(100 * ms)
		}
		last := time.Now()
		time.Sleep(time.Minute)
		stop()
		// One in MaxBackoff.
		if n := p.count("resync"); n < 10 || n > 35 {
			t.Errorf("%d resyncs in 10 min of refusals, want at most one in %v", n, outbox.Defaults().MaxBackoff)
		}
		if at := p.arrived["resync"]; at.Before(last) {
			t.Errorf("the last resync arrived %v before the last refusal, want it after", last.Sub(at))
		}
		if c := o.Counts()[kyma]; c.Dropped["malformed"] != 6000 || c.Pending != 0 {
			t.Errorf("counts %+v, want 6000 dropped", c)
		}
	})
}

// Nothing stands in for a resync. So it is sent until the manager takes it, at the pace of other
// refused events.
func TestRefusedResyncDoesNotLoop(t *testing.T) {
	for contract, opts := range contracts() {
		t.Run(contract, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				refusal := error(errNoOwner)
				p := newPicky(func(*core.WatchEvent) error {
					mu.Lock()
					defer mu.Unlock()
					return refusal
				})
				opts.GiveUpAfter = time.Minute
				o, stop := run(t, p, opts)
				for i := range 100 {
					o.Accept(kyma, named(strconv.Itoa(i)))
				}
				time.Sleep(time.Hour)
				// Half of 20 s is not random.
				if n := p.count("resync"); n < 300 || n > 400 {
					t.Errorf("a resync was sent %d times in an hour, want about once in 10 s", n)
				}
				wantCounts(t, o, outbox.Counts{Accepted: 101, Pending: 1, Dropped: map[string]int64{"owner_missing": 100}})
				mu.Lock()
				refusal = nil
				mu.Unlock()
				time.Sleep(outbox.Defaults().MaxBackoff)
				wantCounts(t, o, outbox.Counts{Accepted: 101, Delivered: 1, Dropped: map[string]int64{"owner_missing": 100}})
				stop()
			})
		})
	}
}

// An owner may be the reason for a refusal. Its resync shows whether it is.
func TestRefusedOwnerIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(func(event *core.WatchEvent) error {
			if event.Owner.Name == "wrong" || event.Watched.Name == "bad" {
				return errRefused
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{ResyncOwners: true})
		o.Accept(kyma, ownedBy("wrong", "a"))
		o.Accept(kyma, ownedBy("right", "bad"))
		time.Sleep(time.Minute)
		for _, owner := range []string{"wrong", "right"} {
			if n := p.count("resync of " + owner); n == 0 {
				t.Errorf("no resync of %s stands in for its event", owner)
			}
		}
		before := p.count("resync of wrong")
		o.Resync()
		time.Sleep(time.Minute)
		stop()
		if n := p.count("resync of wrong"); n != before {
			t.Errorf("%d resyncs of the wrong owner after its resync was refused for ever, want %d", n, before)
		}
	})
}

// An event because of which a batch was refused travels without others from then on.
func TestEventThatCondemnedABatchStaysAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
			switch {
			case !slices.Contains(names(batch), "bad"):
				return nil
			case len(batch.Events) == 1:
				return core.EventErrors{0: errNoOwner}
			default:
				return errRefused
			}
		})
		o, stop := run(t, p, outbox.Options{MaxBatch: 10, InFlight: 1, DrainTimeout: -1})
		o.Accept(kyma, named("bad"))
		for i := range 1000 {
			o.Accept(kyma, named(fmt.Sprint("good-", i)))
			time.Sleep(10 * ms)
		}
		time.Sleep(time.Second)
		stop()
		together := 0
		for _, call := range p.seen() {
			if slices.Contains(call.Names, "bad") && len(call.Names) > 1 {
				together++
			}
		}
		if c := o.Counts()[kyma]; together > 1 || c.Delivered != 1000 {
			t.Errorf("%d batches were refused because of one event, want one, and all others delivered: %+v", together, c)
		}
	})
}

// An event of a batch that was refused as a whole is sent alone. When it is refused for itself then,
// a busy manager does not hold it up.
func TestEventThatWasAloneIsRetriedBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := newPicky(refuseBad(core.ErrForbidden))
		large := true
		p := core.ForwarderFunc(func(ctx context.Context, manager core.Manager, batch core.Batch) error {
			if large && len(batch.Events) > 1 {
				large = false
				return errRefused
			}
			return bad.Forward(ctx, manager, batch)
		})
		o, stop := run(t, p, outbox.Options{MaxBatch: 500, Epoch: "e", GiveUpAfter: time.Minute, DrainTimeout: -1})
		o.Accept(kyma, named("bad"))
		o.Accept(kyma, named("good"))
		for i := range 20_000 { // There is always one to send.
			time.Sleep(5 * ms)
			o.Accept(kyma, named(fmt.Sprint("object-", i)))
		}
		if n := bad.count("bad"); n < 5 {
			t.Errorf("the refused event was sent %d times in 100 s, want 5 or more", n)
		}
		if c := o.Counts()[kyma]; c.Dropped["forbidden"] != 1 {
			t.Errorf("counts %+v, want that the refused event is given up", c)
		}
		stop()
	})
}

// Events that travel alone because a batch with them was refused take turns with the others, also when there is always
// one that is due.
func TestEventsThatTravelAloneTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, _ int, batch core.Batch) error {
			time.Sleep(100 * ms)
			switch {
			case batch.Events[0].Watched.Name == "good":
				return nil
			case len(batch.Events) > 1:
				return verdict{reason: "too_large", permanent: true}
			default:
				return core.EventErrors{0: verdict{reason: "other"}}
			}
		})
		o, stop := run(t, p, outbox.Options{
			InFlight: 1, MaxBatch: 100, MaxBackoff: 400 * ms, DrainTimeout: -1, Resend: []time.Duration{},
		})
		const bad = 50
		for i := range bad {
			o.Accept(kyma, named("bad-"+strconv.Itoa(i)))
		}
		time.Sleep(30 * time.Second)
		o.Accept(kyma, named("good"))
		time.Sleep(time.Second)
		wantCounts(t, o, outbox.Counts{Accepted: bad + 1, Delivered: 1, Pending: bad})
		stop()
	})
}
