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
