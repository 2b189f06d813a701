package outbox_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// step is a step of a script.
type step func(w *world)

func wait(d time.Duration) step { return func(*world) { time.Sleep(d) } }

// offer is an event with its outcome.
func offer(event core.WatchEvent, want core.Outcome) step {
	return func(w *world) { w.t.Helper(); w.wantOutcome(kyma, event, want) }
}

func write(name string) step { return offer(named(name), core.Accepted) }

// of is an event of an owner.
func of(owner string) step { return offer(ownedBy(owner, "of "+owner), core.Accepted) }

func counted(want outbox.Counts) step { return func(w *world) { w.t.Helper(); w.wantCounts(want) } }

// oldest wants that the oldest event has waited for a time.
func oldest(want time.Duration) step {
	return func(w *world) {
		w.t.Helper()
		if age := w.OldestPending(kyma); age != want {
			w.t.Errorf("the oldest event has waited %v, want %v", age, want)
		}
	}
}

func retry(w *world) { w.Retry() }

func resync(w *world) { w.Resync() }

// stopped ends the outbox, which takes a time.
func stopped(after time.Duration) step {
	return func(w *world) {
		w.t.Helper()
		if took := took(w.stop); took != after {
			w.t.Errorf("stopped after %v, want %v", took, after)
		}
	}
}

func random(value float64) func() float64 { return func() float64 { return value } }

// script is what an outbox gets, and the calls that must come of it.
type script struct {
	opts   outbox.Options
	plain  bool // as of a scene
	answer answer
	before []step // before the start
	steps  []step
	calls  []call
	// counts are checked unless they are zero.
	counts outbox.Counts
}

func (s *script) play(t *testing.T) {
	w := newWorld(t, scene{opts: s.opts, plain: s.plain, answer: s.answer})
	for _, step := range s.before {
		step(w)
	}

	w.start()
	for _, step := range s.steps {
		step(w)
	}

	wantCalls := func() {
		t.Helper()
		if s.calls != nil {
			w.wantCalls(s.calls...)
		}
	}

	wantCalls()
	if s.counts.Accepted > 0 {
		w.wantCounts(s.counts)
	}
	w.stop()
	w.Retry() // There is nothing to do.
	wantCalls()
}

// slowly answers the first call with an error after 2 s.
func slowly(err error) answer {
	return func(_ context.Context, n int, _ core.Batch) error {
		if n > 0 {
			return nil
		}
		time.Sleep(2 * second)
		return err
	}
}

// The times and contents of all calls, for each rule of settling, retrying and resending.
func TestCalls(t *testing.T) {
	anyResync := core.WatchEvent{Resync: true}
	unowned := ownedBy("", "of ")
	unowned.Owner = types.NamespacedName{}
	malformed := map[core.Reason]int64{"malformed": 1}
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
		"jitter": {
			opts: outbox.Options{Settle: -1, MinBackoff: 2 * second, Random: random(0.5)}, answer: first(1, errDown),
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(1500*ms, "a")},
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
		"a call that hangs is given up": {
			opts: outbox.Options{ForwardTimeout: 5 * second, Settle: -1, MinBackoff: 2 * second},
			answer: func(ctx context.Context, n int, batch core.Batch) error {
				if n > 0 {
					return nil
				}
				return hang(ctx, n, batch)
			},
			steps: []step{write("a"), wait(time.Minute)}, calls: []call{at(0, "a"), at(6*second, "a")},
		},
		// One refused event must neither take the rest of its batch with it nor hold it up.
		"a refused batch is sent event by event": {
			opts: outbox.Options{MaxBatch: 10, InFlight: 1},
			answer: func(_ context.Context, _ int, batch core.Batch) error {
				if slices.Contains(names(batch), "bad") {
					return errRefused
				}
				return nil
			},
			steps: []step{write("a"), write("bad"), write("b"), wait(second)},
			calls: []call{
				at(100*ms, "a", "bad", "b"), at(100*ms, "a"), at(100*ms, "bad"), at(100*ms, "b"), at(200*ms, "resync"),
			},
			counts: outbox.Counts{Accepted: 4, Delivered: 3, Dropped: malformed},
		},
		"a partial failure concerns the events that it names": {
			opts: outbox.Options{MaxBatch: 10}, answer: first(1, core.EventErrors{1: errDown, 2: errRefused}),
			steps:  []step{write("a"), write("b"), write("c"), write("d"), wait(second)},
			calls:  []call{at(100*ms, "a", "b", "c", "d"), at(200*ms, "resync", "b")},
			counts: outbox.Counts{Accepted: 5, Delivered: 4, Dropped: malformed},
		},
		// The second resync replaces events that were dropped while the first had not settled.
		"an overflow collapses into a resync": {
			opts: outbox.Options{MaxKeys: 2, MaxBatch: 10},
			steps: []step{
				write("a"), write("b"), offer(named("c"), core.Dropped), offer(named("d"), core.Dropped),
				offer(named("e"), core.Dropped), wait(second), write("later"), wait(second),
			},
			calls:  []call{at(100*ms, "a", "b", "resync"), at(1100*ms, "later")},
			counts: outbox.Counts{Accepted: 9, Delivered: 4, Coalesced: 2, Dropped: map[core.Reason]int64{"overflow": 3}},
		},
		"an event before the start": {
			before: []step{write("a"), wait(second), oldest(second)}, steps: []step{wait(second)}, calls: []call{at(second, "a")},
		},
		"a resync before the start reaches configured managers": {
			opts: outbox.Options{Managers: []core.Manager{kyma}}, before: []step{resync, counted(outbox.Counts{Accepted: 1, Pending: 1})},
			steps: []step{wait(second)}, calls: []call{at(100*ms, "resync")},
		},
		// A source asks for it as at the return of a canary.
		"a resync before the start is the first": {
			opts:   outbox.Options{Managers: []core.Manager{kyma}, ResyncFirst: true},
			before: []step{resync, wait(time.Minute)}, steps: []step{wait(time.Minute)}, calls: []call{at(time.Minute, "resync")},
		},
		"a stop delivers what is pending": {
			opts: outbox.Options{InFlight: 1}, answer: first(1, errDown),
			steps:  []step{write("a"), write("b"), stopped(200 * ms)},
			counts: outbox.Counts{Accepted: 2, Delivered: 2},
		},
		"a stop gives up at its deadline": {
			opts: outbox.Options{DrainTimeout: 3 * second}, answer: always(errDown),
			steps:  []step{write("a"), stopped(3 * second), offer(named("b"), core.Dropped)},
			counts: outbox.Counts{Accepted: 2, Dropped: map[core.Reason]int64{"shutdown": 2}},
		},
		"a stop cancels a call that hangs": {
			opts: outbox.Options{DrainTimeout: second, ForwardTimeout: time.Hour}, answer: hang,
			steps: []step{write("a"), wait(time.Minute), stopped(second)}, calls: []call{at(100*ms, "a")},
		},
		"a resync after the end is counted": {
			opts: outbox.Options{Managers: []core.Manager{kyma}}, steps: []step{stopped(0), resync},
			counts: outbox.Counts{Accepted: 1, Dropped: map[core.Reason]int64{"shutdown": 1}},
		},
		"an event that is late is not resent": {
			opts: outbox.Options{Resend: []time.Duration{3 * second}}, answer: until(10*second, errDown),
			steps: []step{write("a"), wait(time.Hour)}, counts: outbox.Counts{Accepted: 1, Delivered: 1},
		},
		// Only a time that has passed when the event is sent is skipped.
		"a resend that is late is skipped": {
			opts:   outbox.Options{Resend: []time.Duration{3 * second, 35 * second}, MinBackoff: 20 * second, MaxBackoff: 20 * second},
			answer: until(10*second, errDown), steps: []step{write("a"), wait(time.Hour)},
			calls: []call{at(100*ms, "a"), at(10100*ms, "a"), at(35*second, "a")},
		},
		"a delivered event is sent once more": { // A resend is no event before it is due.
			opts: outbox.Options{Resend: []time.Duration{3 * second}},
			steps: []step{
				write("a"), wait(2 * second), counted(outbox.Counts{Accepted: 1, Delivered: 1}), oldest(0), wait(time.Minute),
			},
			calls: []call{at(100*ms, "a"), at(3*second, "a")}, counts: outbox.Counts{Accepted: 2, Delivered: 2},
		},
		// A write that another webhook delays is seen soon, and after the longest timeout.
		"default resends": {
			plain: true, steps: []step{write("a"), wait(time.Hour)},
			calls:  []call{at(100*ms, "a"), at(3500*ms, "a"), at(35500*ms, "a")},
			counts: outbox.Counts{Accepted: 3, Delivered: 3},
		},
		"a newer event ends the resends": { // The third is after the first resend of the second.
			plain: true,
			steps: []step{write("a"), wait(2 * second), write("a"), wait(8 * second), write("a"), wait(time.Hour)},
			calls: []call{
				at(100*ms, "a"), at(2100*ms, "a"), at(5500*ms, "a"), at(10100*ms, "a"), at(13500*ms, "a"),
				at(45500*ms, "a"),
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
		// waits for a webhook that is gone. The resend of a second resync also serves the first
		// one.
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
			answer: func(_ context.Context, _ int, batch core.Batch) error {
				if !batch.Events[0].Resync {
					return errRefused
				}
				wait(5 * second)(nil)
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
			counts: outbox.Counts{Accepted: 3, Delivered: 2, Dropped: map[core.Reason]int64{"no_owner": 1}},
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
