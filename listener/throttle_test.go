package listener_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// handClock is a clock that is set by hand.
type handClock struct{ since atomic.Int64 }

func (c *handClock) now() time.Time { return time.Unix(1000, 0).Add(time.Duration(c.since.Load())) }

func (c *handClock) add(d time.Duration) { c.since.Add(int64(d)) }

func TestFloodCostsOnlyItsRuntime(t *testing.T) {
	t.Parallel()

	var (
		record recorder
		clock  handClock
		pki    = newFleetPKI(t)
		run    = pki.start(&record, listener.Options{RuntimeRate: 0.5, RuntimeBurst: 10, Now: clock.now, Hooks: record.hooks()})
		a, b   = pki.client(runtimeA), pki.client(runtimeB)
		url    = run.url + "/v2/lifecycle/event"
	)

	const fit = 9 // The bytes cost a little, too.

	for n := range 20 {
		response, body := mustSend(t, a, url, bodyV2, nil)

		want, after := http.StatusOK, ""
		if n >= fit {
			want, after = http.StatusTooManyRequests, "1"
		}

		if response.StatusCode != want || response.Header.Get("Retry-After") != after {
			t.Fatalf("request %d: answer %d %q with Retry-After %q, want %d with %q",
				n, response.StatusCode, body, response.Header.Get("Retry-After"), want, after)
		}
	}

	if response, _ := mustSend(t, b, url, bodyV2, nil); response.StatusCode != http.StatusOK {
		t.Errorf("answer %d to another runtime, want 200", response.StatusCode)
	}

	deliveries, answers := record.taken()
	if len(deliveries) != fit+1 {
		t.Errorf("%d deliveries, want %d", len(deliveries), fit+1)
	}

	if last := answers[fit]; last != (answered{"v2", "", http.StatusTooManyRequests, contract.ReasonTooFast}) {
		t.Errorf("the hook was told %v", last)
	}

	clock.add(time.Minute)

	if response, _ := mustSend(t, a, url, bodyV2, nil); response.StatusCode != http.StatusOK {
		t.Errorf("answer %d after a minute, want 200", response.StatusCode)
	}
}

// Many small requests must not be the dear way to send much.
func TestLargeBodiesCostMore(t *testing.T) {
	t.Parallel()

	for name, body := range map[string]func() io.Reader{
		"announced":     func() io.Reader { return strings.NewReader(strings.Repeat(" ", contract.V3.MaxBody())) },
		"not announced": func() io.Reader { return io.MultiReader(strings.NewReader("[")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var clock handClock

			pki := newFleetPKI(t)
			run := pki.start(&recorder{}, listener.Options{RuntimeRate: 1, RuntimeBurst: 20, Now: clock.now})
			client := pki.client(runtimeA)

			run.sendBody(t, client, contract.V3.ContentType(), body()).want(t, http.StatusBadRequest, contract.ReasonMalformed)

			have := run.sendBody(t, client, contract.V3.ContentType(), body())
			have.want(t, http.StatusTooManyRequests, contract.ReasonTooFast)

			// 17 tokens of 20 are gone, and 17 are needed.
			if after := have.header.Get("Retry-After"); after != "14" {
				t.Errorf("Retry-After %q, want 14", after)
			}
		})
	}
}

func TestInFlightIsBoundedForEachRuntime(t *testing.T) {
	t.Parallel()

	var (
		inside = make(chan struct{})
		free   = make(chan struct{})
		group  sync.WaitGroup
		pki    = newFleetPKI(t)
	)

	run := pki.start(core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		if d.Runtime == runtimeA {
			inside <- struct{}{}
			<-free
		}

		return nil
	}), listener.Options{RuntimeInFlight: 2})
	a, b := pki.client(runtimeA), pki.client(runtimeB)

	for n := range uint64(2) {
		group.Go(func() { run.sendBatch(t, a, change(runtimeA, n+1)).want(t, http.StatusAccepted, "") })
	}

	for range 2 {
		<-inside
	}

	have := run.sendBatch(t, a, change(runtimeA, 3))
	have.want(t, http.StatusTooManyRequests, contract.ReasonTooFast)

	if after := have.header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After %q, want 1", after)
	}

	run.sendBatch(t, b, change(runtimeB, 1)).want(t, http.StatusAccepted, "")
	close(free)
	group.Wait()

	go func() { <-inside }()
	run.sendBatch(t, a, change(runtimeA, 3)).want(t, http.StatusAccepted, "")
}

// A flood comes as fast as it is answered: the connection that it comes on is read slowly, and no other.
func TestFloodIsReadSlowly(t *testing.T) {
	t.Parallel()

	var clock handClock

	pki := newFleetPKI(t)
	run := pki.start(&recorder{}, listener.Options{RuntimeRate: 0.01, RuntimeBurst: 2, Now: clock.now})
	a, url := pki.client(runtimeA), run.url+"/v2/lifecycle/event"

	mustSend(t, a, url, bodyV2, nil)

	const (
		refused = 4
		pause   = 500 * time.Millisecond // at least
	)

	began := time.Now()

	for range refused {
		if response, _ := mustSend(t, a, url, bodyV2, nil); response.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("answer %d, want 429", response.StatusCode)
		}
	}

	// Only the first is read at once.
	if took := time.Since(began); took < (refused-2)*pause {
		t.Errorf("%d requests beyond the share took %v, want at least %v", refused, took, (refused-2)*pause)
	}
}
