package outbox_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Calls in flight that fail together are one failure: the manager is tried again soon after a short
// outage.
func TestConcurrentFailuresCountOnce(t *testing.T) {
	for name, random := range map[string]float64{"shortest waits": 0, "longest waits": 0.999} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const outage = 500 * ms
				start := time.Now()
				p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
					if time.Since(start) > outage {
						return nil
					}
					time.Sleep(time.Duration(n%8) * ms) // They do not fail at the same moment.
					return errDown
				})
				o, stop := run(t, p, outbox.Options{Random: func() float64 { return random }, Settle: -1})
				for i := range 100 {
					o.Accept(kyma, named(strconv.Itoa(i)))
				}
				time.Sleep(outage + time.Second)
				wantCounts(t, o, outbox.Counts{Accepted: 100, Delivered: 100})
				stop()
			})
		})
	}
}

// A call that hangs since before the failure does not delay the next attempt.
func TestHangingCallsDoNotDelayTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(func(ctx context.Context, n int, _ core.Batch) error {
			switch {
			case n == 7:
				return errDown
			case n < 8:
				<-ctx.Done()
				return ctx.Err()
			default:
				return nil
			}
		})
		o, stop := run(t, p, outbox.Options{Settle: -1})
		for i := range 20 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		time.Sleep(time.Second)
		if c := o.Counts()[kyma]; c.Delivered != 13 {
			t.Errorf("counts %+v after 1 s, want all delivered but the 7 that hang", c)
		}
		time.Sleep(time.Minute)
		wantCounts(t, o, outbox.Counts{Accepted: 20, Delivered: 20})
		stop()
	})
}

func TestOneAttemptAtATimeAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls gauge
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n < 8 {
				return errDown
			}
			calls.hold(time.Second)
			return errDown
		})
		o, stop := run(t, p, outbox.Options{Settle: -1, DrainTimeout: -1})
		for i := range 20 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		time.Sleep(time.Minute)
		stop()
		if calls.most != 1 {
			t.Errorf("%d attempts at once while the manager is away, want 1", calls.most)
		}
	})
}

// The waits of an outage do not depend on the one before it. A receiver that is not ready for a moment is tried again
// within about 2 s, also after an hour in which it was not.
func TestALongOutageDoesNotSlowDownTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		p := newPlane(func(context.Context, int, core.Batch) error {
			if down.Load() {
				return core.ErrNotReady
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{Random: func() float64 { return 0.999 }, Resend: []time.Duration{}})
		for i, outage := range []time.Duration{time.Hour, 15 * time.Second} {
			down.Store(true)
			o.Accept(kyma, named(strconv.Itoa(i)))
			time.Sleep(outage)
			down.Store(false)
			if i == 0 {
				time.Sleep(time.Minute)
			}
		}
		time.Sleep(2 * time.Second)
		wantCounts(t, o, outbox.Counts{Accepted: 2, Delivered: 2})
		stop()
	})
}
