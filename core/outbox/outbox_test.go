package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// gauge measures how many calls run in parallel.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

// hold is one call of a second.
func (g *gauge) hold() {
	g.add(1)
	time.Sleep(second)
	g.add(-1)
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

// A receiver that answers gets the first attempt soon after an outage, for its length. One of a day
// has pauses of MaxBackoff.
func TestBackoffOfAReceiverThatAnswers(t *testing.T) {
	for outage, want := range map[time.Duration]time.Duration{
		500 * ms: second, 4 * second: 2 * second, 16 * second: 2 * second,
		20 * second: 2500 * ms, time.Minute: 7500 * ms, 24 * time.Hour: 20 * second,
	} {
		t.Run(outage.String(), func(t *testing.T) {
			inBubble(t, scene{
				opts:   outbox.Options{Settle: -1, Random: random(0.999)},
				answer: until(outage, fmt.Errorf("%w: no leader", core.ErrNotReady)),
			}, func(w *world) {
				w.write("a")
				time.Sleep(outage + want)
				synctest.Wait()
				w.wantDelivered(1)

				most := 40 + int(outage/outbox.Defaults().MaxBackoff)*11/10
				w.wantBetween(1, len(w.seen()), most, "attempts")
			})
		})
	}
}

func TestCallsAreBounded(t *testing.T) {
	var calls gauge
	inBubble(t, scene{
		opts:   outbox.Options{InFlight: 3, MaxBatch: 2},
		answer: func(context.Context, int, core.Batch) error { calls.hold(); return nil },
	}, func(w *world) {
		w.writeMany(100, "", 0)
		time.Sleep(time.Minute)
		w.stop()
		w.wantBetween(3, calls.most, 3, "calls at once")
		w.wantDelivered(100)
	})
}

// Each event that gives way brings a resync for its owner, and a pod chooses the owner.
func TestOwnersDoNotUnboundTheOverflow(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxKeys: 1, DrainTimeout: -1}, answer: always(errDown)}, func(w *world) {
		for i := range 10_000 {
			w.Accept(kyma, ownedBy(numbered("", i), numbered("", i)))
		}
		w.wantBetween(1, int(w.Counts()[kyma].Pending), 205, "events are kept")
	})
}

func TestStartsOnce(t *testing.T) {
	inBubble(t, scene{}, func(w *world) {
		synctest.Wait()
		if err := w.Start(t.Context()); !errors.Is(err, outbox.ErrStarted) {
			t.Errorf("second Start: %v, want ErrStarted", err)
		}
	})
}

func TestNewNamesWrongOptions(t *testing.T) {
	for want, opts := range map[string]outbox.Options{
		"Resend":            {Resend: []time.Duration{100 * ms}},
		"GiveUpAfter":       {GiveUpAfter: -1},
		"MaxKeys":           {MaxKeys: -1},
		"MaxBytes":          {MaxBytes: -1},
		"MaxManagers":       {MaxManagers: -1},
		"MaxBatch":          {MaxBatch: -1},
		"ForwardTimeout":    {ForwardTimeout: -1},
		"MinBackoff":        {MinBackoff: 30}, // A unit is missing.
		"MaxBackoff":        {MinBackoff: 2 * time.Millisecond, MaxBackoff: time.Millisecond},
		"HeartbeatInterval": {HeartbeatInterval: 30},
		"InFlight is -1":    {InFlight: -1},
		// Two calls at a time would change the order of the numbers.
		"outbox: option InFlight is 2, want 1 with an Epoch": {Epoch: "e", InFlight: 2},
	} {
		if _, err := outbox.New(&plane{}, opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names it", want, err)
		}
	}
	if _, err := outbox.New(core.ForwarderFunc(nil), outbox.Options{}); err == nil {
		t.Error("no error for a nil forwarder")
	}
}

// Admission waits for Accept: its cost must not depend on the number of pending events.
func BenchmarkAccept(b *testing.B) {
	for _, pending := range []int{0, 100, 9_000} {
		b.Run(fmt.Sprint("pending=", pending), func(b *testing.B) {
			o := fill(b, pending)
			event := named("new")
			b.ReportAllocs()
			for b.Loop() {
				o.Accept(kyma, event)
			}
		})
	}
}

func fill(b *testing.B, pending int) *outbox.Outbox {
	b.Helper()

	o, err := outbox.New(&plane{}, outbox.Options{})
	if err != nil {
		b.Fatal(err)
	}

	for i := range pending {
		o.Accept(kyma, named(strconv.Itoa(i)))
	}

	return o
}
