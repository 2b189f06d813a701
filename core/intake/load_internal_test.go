package intake

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// busyIntake has handlers that take no more, until free is closed.
type busyIntake struct {
	*Intake

	watched        *fleet.Fleet
	free           chan struct{}
	calls          sync.WaitGroup
	inFlight, most int // of a bubble: one goroutine at a time
	mu             sync.Mutex
}

// newBusyIntake fills 16 slots. The verifier holds senders with the name slow, and refuses
// strangers.
func newBusyIntake(t *testing.T) *busyIntake {
	t.Helper()

	b := &busyIntake{free: make(chan struct{}), watched: newFleet(t, fleet.Options{ResyncJitter: time.Millisecond})}
	verifier := core.VerifierFunc(func(_ context.Context, peer core.Peer, _ *core.WatchEvent) error {
		switch peer.ID {
		case "slow":
			<-b.free
		case "stranger":
			return refusal(core.ErrForbidden, reasons.SANMismatch)
		}
		return nil
	})

	b.Intake = newIntake(t, verifier, fails(func(string) error { <-b.free; return nil }, nil), Options{
		MaxInFlight: 16, HandleTimeout: time.Hour, Fleet: b.watched, InFlight: func(delta int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.inFlight += delta
			b.most = max(b.most, b.inFlight)
		},
	})

	for range 16 {
		b.calls.Go(func() { _ = b.Receive(t.Context(), request(runtimeA, events(1, 1))) })
	}

	synctest.Wait()
	return b
}

func (b *busyIntake) wantBusy(t *testing.T, err error) {
	t.Helper()

	v := verdictOf(err)
	if v.Whole == nil || v.Whole.Reason() != reasons.Busy || v.Whole.Fault != faultOfIntake ||
		v.Whole.Error() != "refused: busy" {
		t.Errorf("the batch failed with %v, want busy", v.Whole)
	}
}

// The fleet observes a runtime, which stays fresh, while the intake refuses all events for load.
func TestHeartbeatsAreObservedUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBusyIntake(t)
		b.wantBusy(t, b.Receive(t.Context(), request(runtimeB, events(1, 1))))
		if s := b.watched.Get(runtimeB, manager); s.State != fleet.Unknown || len(s.Replicas) != 1 {
			t.Errorf("a runtime whose event was refused for load is %+v, want it observed", s)
		}

		alone := beating(core.Batch{})
		alone.Heartbeat.Sequence = 1
		if err := b.Receive(t.Context(), request(runtimeB, alone)); err != nil {
			t.Errorf("a heartbeat alone fails with %v, want it taken", err)
		}

		beside := beating(events(1, 2))
		beside.Heartbeat.Sequence = 2
		b.wantBusy(t, b.Receive(t.Context(), request(runtimeB, beside)))
		if s := b.watched.Get(runtimeB, manager); s.State != fleet.Fresh || s.Replicas[0].Sequence != 2 {
			t.Errorf("a runtime whose heartbeats come under load is %+v, want it fresh", s)
		}

		for _, batch := range []core.Batch{beating(core.Batch{}), beating(events(1, 1))} {
			if err := b.Receive(t.Context(), request("stranger", batch)); err == nil {
				t.Error("a batch of a stranger was taken")
			}
		}

		// The verifier can hold up two batches that are only observed, and no more.
		for range 2 {
			b.calls.Go(func() { _ = b.Receive(t.Context(), request("slow", beating(core.Batch{}))) })
		}

		synctest.Wait()
		b.wantBusy(t, b.Receive(t.Context(), request("third", beating(core.Batch{}))))
		for _, runtime := range []core.RuntimeID{"stranger", "third"} {
			if s := b.watched.Get(runtime, manager); !s.LastSeen.IsZero() {
				t.Errorf("%s was observed: %+v", runtime, s)
			}
		}

		if b.inFlight != 16 {
			t.Errorf("%d are in flight, want 16", b.inFlight)
		}

		close(b.free)
		b.calls.Wait()
		if err := b.Receive(t.Context(), request(runtimeB, events(1, 3))); err != nil || b.inFlight != 0 || b.most != 16 {
			t.Errorf("with room again: %v; %d in flight and %d at most, want 0 and 16", err, b.inFlight, b.most)
		}
	})
}

// A transport that keeps a batch waits for a slot.
func TestWaitForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBusyIntake(t)
		waits := request(runtimeB, events(1, 1))
		waits.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b.wantBusy(t, b.Receive(ctx, waits))

		b.calls.Go(func() {
			if err := b.Receive(t.Context(), waits); err != nil {
				t.Errorf("the batch that waited failed with %v", err)
			}
		})

		synctest.Wait()
		close(b.free)
		b.calls.Wait()
	})
}

// A resync that was refused for load does not replace a resync of the fleet.
func TestRefusedResyncReplacesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBusyIntake(t)
		own := events(1, 1)
		own.Events[0].WatchEvent = core.WatchEvent{Resync: true}
		b.wantBusy(t, b.Receive(t.Context(), request(runtimeB, own)))

		close(b.free)
		b.calls.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		found := false
		finds := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
			found = found || d.Runtime == runtimeB
			return nil
		})
		_ = b.watched.Receiver().Start(ctx, map[core.Manager]core.Handler{manager: finds}) // It ends with the context.

		if !found {
			t.Error("no resync of the runtime, but its own was refused")
		}
	})
}

// A handler that waits for its context ends after 5 s.
func TestHandleTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := core.HandlerFunc(func(ctx context.Context, _ core.Delivery) error { <-ctx.Done(); return ctx.Err() })
		in := newIntake(t, verifies(is(nil), is(nil)), handler, Options{})
		began := time.Now()
		v := verdictOf(in.Receive(t.Context(), request(runtimeA, events(1, 1))))
		if took := time.Since(began); v.Failed[0] == nil || took != 5*time.Second {
			t.Errorf("failure %v after %v, want one after 5s", v.Failed[0], took)
		}
	})
}

// A runtime gets no more events to the handler by sending them in batches, and a sender that waits
// as long as it is asked to gets everything through, also batches that are larger than the burst.
func TestEventsOfABatchAreCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, burst, each, batches = 2, 4, 20, 50
		in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, nil), Options{RuntimeRate: rate, RuntimeBurst: burst})
		send := func(a Account) *Failure {
			if err := in.Enter(a, 0); err != nil {
				return failureOf(err)
			}
			defer in.Leave(a)
			return verdictOf(in.Receive(t.Context(), request(core.RuntimeID(a.Name), events(each, 1)))).Whole
		}

		began := time.Now()
		for range batches {
			f := send(prod)
			for ; f != nil; f = send(prod) {
				if f.Fault != FaultOfShare || f.RetryAfter() <= 0 {
					t.Fatalf("failure %v with a wait of %v, want one of the share", f, f.RetryAfter())
				}
				if other := send(Account{Name: "other" + time.Now().String()}); other != nil {
					t.Fatalf("another runtime is refused: %v", other)
				}
				time.Sleep(f.RetryAfter())
			}
		}

		// The burst is free, and the last batch may be in debt.
		least := time.Duration((batches-1)*each-burst) * time.Second / rate
		if took := time.Since(began); took < least || took > least+5*time.Second {
			t.Errorf("%d events took %v, want about %v", batches*each, took, least)
		}
	})
}

// Size counts as events, pauses add up to a bound, and strangers and deferred messages have
// accounts like runtimes.
func TestSharesOfMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := newIntake(t, verifies(is(nil), is(nil)), fails(takes, nil), Options{RuntimeRate: 1, RuntimeBurst: 20})
		// Each 16 KiB count as an event: 17 tokens of 20 are gone, and 17 are needed.
		if f := in.Enter(prod, 256<<10); f != nil {
			t.Fatal(f)
		}

		in.Leave(prod)
		for n := range 3 {
			f := failureOf(in.Enter(prod, 256<<10))
			pause := time.Duration(n+1) * 10 * time.Millisecond
			if f == nil || f.RetryAfter() != 14*time.Second || f.Pause != pause {
				t.Fatalf("refusal %d is %+v, want a wait of 14s and a pause of %v", n, f, pause)
			}
		}

		var last *Failure
		for range 1000 {
			last = failureOf(in.Enter(prod, 256<<10))
		}

		if last.Pause != 5*time.Second {
			t.Errorf("the pause after a thousand refusals is %v, want 5s", last.Pause)
		}

		stranger := Account{Name: "192.0.2.1", Stranger: true}
		for n := range 22 { // It may go into debt.
			if f := failureOf(in.Charge(stranger)); (f != nil) != (n == 21) || f != nil && f.RetryAfter() != 2*time.Second {
				t.Fatalf("message %d of a stranger: %+v, want the 22nd to wait for 2s", n+1, f)
			}
		}

		kept := Account{Name: "kept"}
		for _, want := range []time.Duration{time.Second, 9800 * time.Millisecond} {
			if have := in.Defer(kept, 4, 64<<10); have.Round(time.Millisecond) != want {
				t.Errorf("a message of 4 events and 64 KiB is deferred for %v, want %v", have, want)
			}
		}
	})
}

// A debt is forgotten when it is paid, and not before.
func TestSharesForgetNoDebt(t *testing.T) {
	t.Parallel()

	const rate, step = 2, 10 * time.Second
	debt := contract.V3.MaxEvents()
	s := newShares(rate, 1, 1)
	now := time.Unix(1000, 0)
	s.chargeAccount(prod, 1, now)
	s.chargeAccount(prod, float64(debt), now)
	paid := now.Add(time.Duration(debt) * time.Second / rate)

	for ; now.Before(paid); now = now.Add(step) {
		if _, ok := s.chargeAccount(prod, 1e-9, now); ok {
			t.Fatalf("charged again %v before the debt is paid", paid.Sub(now))
		}
		visit(s, Account{Name: "other"}, now) // It may let shares forget the first.
	}

	if _, ok := s.chargeAccount(prod, 1, now); !ok {
		t.Error("refused when the debt is paid")
	}
}

func TestNewNamesAllThatIsMissing(t *testing.T) {
	t.Parallel()

	handlers := map[core.Manager]core.Handler{"Not a label": fails(takes, nil), manager: core.HandlerFunc(nil)}
	_, err := New(core.VerifierFunc(nil), handlers, Options{MaxInFlight: -1, HandleTimeout: -1})
	for _, want := range []string{"verifier is nil", "Not a label", "handler is nil", "MaxInFlight", "HandleTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}

	if _, err := New(verifies(is(nil), is(nil)), nil, Options{}); err == nil {
		t.Error("an intake without handlers was made")
	}
}
