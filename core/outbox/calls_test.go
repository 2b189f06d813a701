package outbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// step is a step of a script.
type step func(t *testing.T, o *outbox.Outbox)

func wait(d time.Duration) step { return func(*testing.T, *outbox.Outbox) { time.Sleep(d) } }

// offer is an event with its outcome.
func offer(event core.WatchEvent, want core.Outcome) step {
	return func(t *testing.T, o *outbox.Outbox) {
		t.Helper()
		if got := o.Accept(kyma, event); got != want {
			t.Errorf("%s: %s, want %s", nameOf(event), got, want)
		}
	}
}

func write(name string) step { return offer(named(name), core.Accepted) }

// of is an event of an owner.
func of(owner string) step { return offer(ownedBy(owner, "of "+owner), core.Accepted) }

func counted(want outbox.Counts) step {
	return func(t *testing.T, o *outbox.Outbox) {
		t.Helper()
		wantCounts(t, o, want)
	}
}

func idle(t *testing.T, o *outbox.Outbox) {
	t.Helper()
	if age := o.OldestPending(kyma); age != 0 {
		t.Errorf("the oldest event has waited %v, want none", age)
	}
}

func retry(_ *testing.T, o *outbox.Outbox) { o.Retry() }

func resync(_ *testing.T, o *outbox.Outbox) { o.Resync() }

func always(random float64) func() float64 { return func() float64 { return random } }

// script is what an outbox gets, and the calls that must come of it.
type script struct {
	opts outbox.Options
	// plain leaves resends on.
	plain bool
	// answer is that of the n-th call, some time after the start. Default: nil.
	answer func(at time.Duration, n int, batch core.Batch) error
	steps  []step
	calls  []call
	// counts are checked unless they are zero.
	counts outbox.Counts
}

func (s *script) play(t *testing.T) {
	var p *plane
	p = newPlane(func(_ context.Context, n int, batch core.Batch) error {
		if s.answer == nil {
			return nil
		}
		return s.answer(time.Since(p.start), n, batch)
	})
	var o *outbox.Outbox
	var stop func()
	if s.plain {
		o = newOutbox(t, p, s.opts)
		stop = startOutbox(t, o)
	} else {
		o, stop = run(t, p, s.opts)
	}
	for _, step := range s.steps {
		step(t, o)
	}
	wantCalls(t, p, s.calls...)
	if s.counts.Accepted > 0 {
		wantCounts(t, o, s.counts)
	}
	stop()
	o.Retry() // There is nothing to do.
	wantCalls(t, p, s.calls...)
}

// first answers the first n calls with an error.
func first(n int, err error) func(time.Duration, int, core.Batch) error {
	return func(_ time.Duration, i int, _ core.Batch) error {
		if i < n {
			return err
		}
		return nil
	}
}

// slowly answers the first call with an error after 2 s.
func slowly(err error) func(time.Duration, int, core.Batch) error {
	return func(_ time.Duration, n int, _ core.Batch) error {
		if n > 0 {
			return nil
		}
		time.Sleep(2 * time.Second)
		return err
	}
}

const second = time.Second

func TestCalls(t *testing.T) {
	anyResync := core.WatchEvent{Resync: true}
	unowned := ownedBy("", "of ")
	unowned.Owner = types.NamespacedName{}
	malformed := map[string]int64{"malformed": 1}
	for name, s := range map[string]script{
		"an event waits until it has settled": {
			steps: []step{write("a"), wait(second)},
			calls: []call{at(100*ms, "a")}, counts: outbox.Counts{Accepted: 1, Delivered: 1},
		},
		"a negative settle time sends at once": {
			opts: outbox.Options{Settle: -1}, steps: []step{write("a"), wait(second)}, calls: []call{at(0, "a")},
		},
		// A write that is accepted while an event for its object waits may be committed later.
		"a later event is sent after its own settle time": {
			steps: []step{
				write("a"), wait(60 * ms), write("a"), wait(10 * ms), offer(named("a"), core.Coalesced), wait(second),
			},
			calls:  []call{at(100*ms, "a"), at(170*ms, "a")},
			counts: outbox.Counts{Accepted: 3, Delivered: 2, Coalesced: 1},
		},
		"backoff doubles up to its bound": { // Without chance half of each wait is left: 1, 2, 4, 8, 8, 8 s.
			opts:   outbox.Options{Settle: -1, MinBackoff: 2 * second, MaxBackoff: 16 * second},
			answer: first(6, errDown), steps: []step{write("a"), wait(time.Minute)},
			calls: []call{
				at(0, "a"), at(second, "a"), at(3*second, "a"), at(7*second, "a"), at(15*second, "a"),
				at(23*second, "a"), at(31*second, "a"),
			},
		},
		"jitter of 0.5": {
			opts: outbox.Options{Settle: -1, MinBackoff: 2 * second, Random: always(0.5)}, answer: first(1, errDown),
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(1500*ms, "a")},
		},
		"jitter of 0.9": {
			opts: outbox.Options{Settle: -1, MinBackoff: 2 * second, Random: always(0.9)}, answer: first(1, errDown),
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(1900*ms, "a")},
		},
		"RetryAfter of a batch": {
			opts: outbox.Options{Settle: -1}, answer: first(1, verdict{after: 7 * second}),
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(7*second, "a")},
		},
		"RetryAfter of an event": {
			opts: outbox.Options{Settle: -1}, answer: first(1, core.EventErrors{0: verdict{after: 7 * second}}),
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(7*second, "a")},
		},
		"only a permanent refusal drops, and a resync stands in": {
			answer: first(1, errRefused),
			steps: []step{
				write("a"), wait(time.Hour), counted(outbox.Counts{Accepted: 2, Delivered: 1, Dropped: malformed}),
				write("a"), wait(second),
			},
			calls:  []call{at(100*ms, "a"), at(200*ms, "resync"), at(time.Hour+100*ms, "a")},
			counts: outbox.Counts{Accepted: 3, Delivered: 2, Dropped: malformed},
		},

		"a delivered event is sent once more": { // A resend is no event before it is due.
			opts: outbox.Options{Resend: []time.Duration{3 * second}},
			steps: []step{
				write("a"), wait(2 * second), counted(outbox.Counts{Accepted: 1, Delivered: 1}), idle, wait(time.Minute),
			},
			calls: []call{at(100*ms, "a"), at(3*second, "a")}, counts: outbox.Counts{Accepted: 2, Delivered: 2},
		},
		// A write that another webhook delays is seen soon, and after the longest timeout.
		"default resends": {
			plain: true, steps: []step{write("a"), wait(time.Hour)},
			calls:  []call{at(100*ms, "a"), at(3*second, "a"), at(35*second, "a")},
			counts: outbox.Counts{Accepted: 3, Delivered: 3},
		},
		"a newer event ends the resends": { // The third is after the first resend of the second.
			plain: true,
			steps: []step{write("a"), wait(2 * second), write("a"), wait(8 * second), write("a"), wait(time.Hour)},
			calls: []call{
				at(100*ms, "a"), at(2100*ms, "a"), at(5*second, "a"), at(10100*ms, "a"), at(13*second, "a"),
				at(45*second, "a"),
			},
		},
		"empty Resend means none": {
			plain: true, opts: outbox.Options{Resend: []time.Duration{}},
			steps: []step{write("a"), wait(time.Hour)}, calls: []call{at(100*ms, "a")},
		},
		// The newer events show an earlier write that is committed late. No object goes unseen for
		// longer than Resend and the settle time.
		"the newest event of a key is resent": {
			opts: outbox.Options{Resend: []time.Duration{second}},
			steps: []step{
				write("a"), wait(900 * ms), write("a"), wait(900 * ms), write("a"), wait(900 * ms), write("a"),
				wait(time.Minute),
			},
			calls:  []call{at(100*ms, "a"), at(second, "a"), at(1900*ms, "a"), at(2800*ms, "a"), at(3700*ms, "a")},
			counts: outbox.Counts{Accepted: 5, Delivered: 5},
		},
		"a refused event is not resent, but the resync that stands in": {
			opts:   outbox.Options{Resend: []time.Duration{2 * second}, ResendResync: 3 * second},
			answer: first(1, errRefused), steps: []step{write("a"), wait(time.Minute)},
			calls: []call{at(100*ms, "a"), at(200*ms, "resync"), at(3*second, "resync")},
		},

		"the first event of a manager brings a resync": {
			opts:  outbox.Options{ResyncFirst: true, InFlight: 1},
			steps: []step{write("a"), wait(second), write("b"), wait(second)},
			calls: []call{at(100*ms, "resync"), at(100*ms, "a"), at(1100*ms, "b")},
		},
		"a first event that is a resync itself needs no other one": {
			opts: outbox.Options{ResyncFirst: true}, steps: []step{offer(anyResync, core.Accepted), wait(time.Minute)},
			calls: []call{at(100*ms, "resync")},
		},
		"a negative ResendResync asks once": {
			opts:  outbox.Options{Managers: []core.Manager{kyma}, ResyncFirst: true, ResendResync: -1, InFlight: 1},
			steps: []step{wait(time.Minute)}, calls: []call{at(100*ms, "resync")},
		},
		// A write that the source did not see may be committed seconds later: an API server first
		// waits for a webhook that is gone. The resend of a second resync is that of the first one, too.
		"a resync is sent once more": {
			opts: outbox.Options{
				Managers: []core.Manager{kyma}, ResyncFirst: true, InFlight: 1, ResendResync: 10 * second,
			},
			steps: []step{wait(time.Minute), resync, wait(5 * second), resync, wait(time.Minute)},
			calls: []call{
				at(100*ms, "resync"), at(10*second, "resync"), at(time.Minute+100*ms, "resync"),
				at(time.Minute+5*second+100*ms, "resync"), at(time.Minute+15*second, "resync"),
			},
		},
		// A resync on its way may have been sent before the event that is refused had settled.
		"a resync on its way does not stand in": {
			opts: outbox.Options{Managers: []core.Manager{kyma}},
			answer: func(_ time.Duration, _ int, batch core.Batch) error {
				if !batch.Events[0].Resync {
					return errRefused
				}
				wait(5*second)(nil, nil)
				return nil
			},
			steps: []step{resync, wait(50 * ms), write("a"), wait(time.Minute)},
			calls: []call{at(100*ms, "resync"), at(150*ms, "a"), at(5100*ms, "resync")},
		},
		"a resync without a known owner is dropped": {
			opts: outbox.Options{Managers: []core.Manager{kyma}, ResyncOwners: true, Settle: -1},
			steps: []step{
				wait(second), offer(anyResync, core.Dropped), offer(ownedBy("one", "a"), core.Accepted),
				wait(second), offer(anyResync, core.Accepted), wait(second),
			},
			calls:  []call{at(second, "a"), at(2*second, "resync of one")},
			counts: outbox.Counts{Accepted: 3, Delivered: 2, Dropped: map[string]int64{"no_owner": 1}},
		},
		"resyncs for owners": { // 5 s are the shortest time between two resyncs of an owner.
			opts: outbox.Options{
				Managers: []core.Manager{kyma}, ResyncFirst: true, ResyncOwners: true, InFlight: 1, Settle: -1,
			},
			steps: []step{
				offer(unowned, core.Accepted), wait(second), of("one"), wait(second), of("two"), wait(second), of("one"),
				wait(6 * second), resync, wait(second),
			},
			calls: []call{
				at(0, "of "), // No owner is known at the start, nor from this event.
				at(second, "resync of one"), at(second, "of one"), at(2*second, "resync of two"),
				at(2*second, "of two"), at(3*second, "of one"), at(9*second, "resync of one"), at(9*second, "resync of two"),
			},
		},

		// The first Retry is in vain. Once only, then the wait is as long as before.
		"Retry ends the wait of a manager": {
			opts: outbox.Options{Settle: -1}, answer: first(2, unwelcome),
			steps: []step{write("a"), wait(second), retry, wait(9 * second), retry, retry, wait(time.Minute)},
			calls: []call{at(0, "a"), at(second, "a"), at(10*second, "a")},
		},
		"Retry ends the wait of an event, not that of one that has not settled": {
			opts: outbox.Options{MaxBatch: 10}, answer: first(1, core.EventErrors{0: unwelcome, 1: unwelcome}),
			steps: []step{write("a"), write("b"), wait(second), write("c"), retry, wait(time.Minute)},
			calls: []call{at(100*ms, "a", "b"), at(second, "a", "b"), at(1100*ms, "c")},
		},
		// A call that began with the old certificate ends after the new one is in use.
		"Retry counts for a call under way": {
			opts: outbox.Options{Settle: -1}, answer: slowly(unwelcome),
			steps: []step{write("a"), wait(second), retry, wait(time.Minute)},
			calls: []call{at(0, "a"), at(2*second, "a")},
		},
		"Retry counts for an event under way": {
			opts: outbox.Options{Settle: -1}, answer: slowly(core.EventErrors{0: unwelcome}),
			steps: []step{write("a"), wait(second), retry, wait(time.Minute)},
			calls: []call{at(0, "a"), at(2*second, "a")},
		},
		"Retry has nothing to do": {
			steps: []step{retry, write("a"), retry, wait(second)}, calls: []call{at(100*ms, "a")},
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, s.play) })
	}
}
