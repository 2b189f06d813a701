package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// unwelcome is refused, and asks for half a minute of patience.
var unwelcome = verdict{reason: "unauthenticated", after: 30 * time.Second}

func TestRetryEndsTheWaitOfAManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n < 2 {
				return unwelcome
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{Settle: -1})
		o.Accept(kyma, named("a"))
		time.Sleep(time.Second)
		o.Retry() // In vain: once only, then the wait is as long as before.
		time.Sleep(9 * time.Second)
		o.Retry()
		o.Retry()
		time.Sleep(time.Minute)
		wantCalls(t, p, at(0, "a"), at(time.Second, "a"), at(10*time.Second, "a"))
		stop()
	})
}

// After a long refusal, the first call with the new certificate reaches a replica that does not
// lead. The long refusal says nothing about the next call.
func TestRetryBeginsTheWaitsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed atomic.Bool
		p := newPlane(func(context.Context, int, core.Batch) error {
			if !renewed.Load() {
				return unwelcome
			}
			renewed.Store(false)
			return core.ErrNotReady
		})
		o, stop := run(t, p, outbox.Options{Settle: -1})
		o.Accept(kyma, named("a"))
		time.Sleep(10 * time.Minute)
		calls := len(p.seen())
		renewed.Store(true)
		o.Retry()
		time.Sleep(time.Second)
		if have := len(p.seen()) - calls; have < 2 {
			t.Errorf("%d calls within a second of Retry, want another after that which was not ready", have)
		}
		stop()
	})
}

func TestRetryEndsTheWaitOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n == 0 {
				return core.EventErrors{0: unwelcome, 1: unwelcome}
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{MaxBatch: 10})
		o.Accept(kyma, named("a"))
		o.Accept(kyma, named("b"))
		time.Sleep(time.Second)
		o.Accept(kyma, named("c"))
		o.Retry() // Not for an event that has not settled.
		time.Sleep(time.Minute)
		wantCalls(t, p, at(100*ms, "a", "b"), at(time.Second, "a", "b"), at(1100*ms, "c"))
		stop()
	})
}

// A call that began with the old certificate ends after the new one is in use.
func TestRetryCountsForCallsUnderWay(t *testing.T) {
	for name, refusal := range map[string]error{"manager": unwelcome, "event": core.EventErrors{0: unwelcome}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
					if n > 0 {
						return nil
					}
					time.Sleep(2 * time.Second)
					return refusal
				})
				o, stop := run(t, p, outbox.Options{Settle: -1})
				o.Accept(kyma, named("a"))
				time.Sleep(time.Second)
				o.Retry()
				time.Sleep(time.Minute)
				wantCalls(t, p, at(0, "a"), at(2*time.Second, "a"))
				stop()
			})
		})
	}
}

func TestRetryHasNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(nil)
		o, stop := run(t, p, outbox.Options{})
		o.Retry()
		o.Accept(kyma, named("a"))
		o.Retry()
		time.Sleep(time.Second)
		stop()
		o.Retry()
		wantCalls(t, p, at(100*ms, "a"))
	})
}

// Events that were refused for different times come in the order in which they were accepted.
func TestRetryKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 20
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n < events {
				return core.EventErrors{0: verdict{after: time.Duration(events-n) * time.Minute}}
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{InFlight: 1})
		var want []string
		for i := range events {
			want = append(want, strconv.Itoa(i))
			o.Accept(kyma, named(want[i]))
		}
		time.Sleep(time.Second)
		o.Retry()
		time.Sleep(time.Second)
		stop()
		var got []string
		for _, call := range p.seen()[events:] {
			got = append(got, call.Names...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
