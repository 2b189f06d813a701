package outbox_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// batching are the options of contract v3, as they ship, for so long between acceptance and
// sending.
func batching(settle time.Duration) outbox.Options {
	return outbox.Options{
		Settle: settle, MaxBatch: 500, Epoch: "e", HeartbeatInterval: -1, Resend: outbox.Defaults().Resend,
		ResendEvery: outbox.Defaults().ResendEvery, Gather: outbox.Defaults().Gather,
	}
}

// slowOne takes a call for 2 ms.
func slowOne(context.Context, int, core.Batch) error {
	time.Sleep(2 * ms)
	return nil
}

// TestRequestsForAChange counts the calls of a minute, resends included, at several rates.
func TestRequestsForAChange(t *testing.T) {
	for _, tt := range []struct {
		perSecond int
		most      float64
	}{{1, 1.7}, {10, 1.15}, {30, 1.1}, {100, 0.2}, {1000, 0.025}} {
		for _, regular := range []bool{true, false} {
			for _, settle := range []time.Duration{10 * ms, 100 * ms} {
				inBubble(t, scene{opts: batching(settle), answer: slowOne}, func(w *world) {
					random := rand.New(rand.NewPCG(1, uint64(tt.perSecond)))
					changes := 60 * tt.perSecond
					for i := range changes {
						w.Accept(kyma, named(numbered("o-", i)))
						pause := float64(second) / float64(tt.perSecond)
						if !regular {
							pause *= random.ExpFloat64()
						}
						time.Sleep(time.Duration(pause))
					}

					calls := len(w.seen())
					each := float64(calls) / float64(changes)
					t.Logf("%d changes/s, regular %v, settle %v: %.3f calls for a change", tt.perSecond, regular, settle, each)
					if each > tt.most {
						t.Errorf("%d changes/s, regular %v, settle %v: %.3f calls for a change, want at most %.3f",
							tt.perSecond, regular, settle, each, tt.most)
					}
				})
			}
		}
	}
}

// TestAnIdlePathSendsImmediately changes something every 200 ms.
func TestAnIdlePathSendsImmediately(t *testing.T) {
	opts := batching(10 * ms)
	opts.Resend = []time.Duration{}
	inBubble(t, scene{opts: opts, answer: slowOne}, func(w *world) {
		var want []call
		for i := range 20 {
			name := numbered("o-", i)
			want = append(want, at(elapsed()+10*ms, name))
			w.write(name)
			time.Sleep(200 * ms)
		}

		w.wantCalls(want...)
	})
}

// TestAWriterThatWaitsIsNotDelayed writes when the event of the write before has arrived. No event
// could travel with another one.
func TestAWriterThatWaitsIsNotDelayed(t *testing.T) {
	const writes = 500
	inBubble(t, scene{opts: batching(10 * ms), answer: slowOne}, func(w *world) {
		late := 0
		for i := range writes {
			name := numbered("o-", i)
			began := time.Now()
			w.write(name)

			for w.count(name) == 0 {
				time.Sleep(ms) // In a bubble.
			}

			if time.Since(began) > 15*ms {
				late++
			}
			time.Sleep(3 * ms)
		}

		if most := writes / 50; late > most { // Resends travel with them.
			t.Errorf("%d of %d events waited, want at most %d", late, writes, most)
		}
	})
}

// TestAFullBatchDoesNotWait accepts more than a batch takes.
func TestAFullBatchDoesNotWait(t *testing.T) {
	opts := batching(10 * ms)
	opts.MaxBatch = 2
	opts.Resend = []time.Duration{}
	inBubble(t, scene{opts: opts}, func(w *world) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			w.write(name)
		}
		time.Sleep(second)
		w.wantCalls(at(10*ms, "a", "b"), at(10*ms, "c", "d"), at(60*ms, "e"))
	})
}

// TestABatchThatFillsUpDoesNotWait accepts a batch of events while an event waits for others.
func TestABatchThatFillsUpDoesNotWait(t *testing.T) {
	opts := batching(10 * ms)
	opts.MaxBatch = 4
	opts.Resend = []time.Duration{}
	inBubble(t, scene{opts: opts}, func(w *world) {
		w.write("a")
		time.Sleep(15 * ms) // It is sent after 10 ms.
		w.write("b")
		time.Sleep(5 * ms)
		w.write("c", "d", "e", "f")
		time.Sleep(second)
		w.wantCalls(at(10*ms, "a"), at(25*ms, "b"), at(30*ms, "c", "d", "e", "f"))
	})
}

// TestResendsTravelTogether accepts an event each 100 ms. Their resends are due half a second after
// a whole one.
func TestResendsTravelTogether(t *testing.T) {
	opts := batching(10 * ms)
	opts.Resend = []time.Duration{3 * second}
	inBubble(t, scene{opts: opts}, func(w *world) {
		for i := range 10 {
			w.write(numbered("o-", i))
			time.Sleep(100 * ms)
		}

		time.Sleep(time.Minute)
		calls := w.seen()
		resends := calls[max(len(calls)-2, 0):]
		if len(calls) != 12 || resends[0].At != 3500*ms || resends[1].At != 4500*ms || len(resends[1].Names) != 4 {
			t.Errorf("calls %v, want ten with an event each, six resends after 3.5 s, and four after 4.5 s", calls)
		}
	})
}

// TestResendsTravelWithEvents writes each second. Each call has a new event, and the resends since
// the last call.
func TestResendsTravelWithEvents(t *testing.T) {
	const writes = 60
	inBubble(t, scene{opts: batching(10 * ms)}, func(w *world) {
		for i := range writes {
			w.write(numbered("o-", i))
			time.Sleep(second)
		}

		for n, call := range w.seen() {
			if want := time.Duration(n)*second + 10*ms; call.At != want || call.Names[0] != numbered("o-", n) {
				t.Fatalf("call %d of %v at %v, want one with o-%d first, at %v", n, call.Names, call.At, n, want)
			}
			for _, name := range call.Names[1:] {
				if age := call.At - eachSecond(t, name); age != 3010*ms && age != 35010*ms {
					t.Errorf("a resend of %s after %v, want it after 3 s or 35 s with the next event", name, age)
				}
			}
		}

		w.wantBetween(2*writes-3+writes-35, len(w.events()), 2*writes-3+writes-35, "events with their resends")
	})
}

// TestResendsTravelWithHeartbeats has one event, of which a heartbeat carries the resend.
func TestResendsTravelWithHeartbeats(t *testing.T) {
	opts := batching(10 * ms)
	opts.Resend = []time.Duration{3 * second}
	opts.ResendEvery = 10 * second
	opts.HeartbeatInterval = 4 * second
	inBubble(t, scene{opts: opts}, func(w *world) {
		w.write("a")
		time.Sleep(10 * second)
		w.wantCalls(at(0, "heartbeat"), at(50*ms, "a"), at(4*second, "a", "heartbeat"), at(8*second, "heartbeat"))
	})
}

// TestResendsLeaveRoom has a batch of three events, which takes one resend.
func TestResendsLeaveRoom(t *testing.T) {
	opts := batching(10 * ms)
	opts.MaxBatch = 3
	opts.Resend = []time.Duration{3 * second}
	inBubble(t, scene{opts: opts}, func(w *world) {
		w.write("a", "b", "c")
		time.Sleep(3100 * ms)
		w.write("d", "e")
		time.Sleep(10 * second)

		calls := w.seen()
		if len(calls) < 3 || len(calls[1].Names) != 3 || calls[1].At != 3110*ms || len(calls[2].Names) != 2 ||
			calls[2].At != 3500*ms {
			t.Errorf("calls %v, want d and e with one resend, and the other resends at 3.5 s", calls)
		}
	})
}

// eachSecond is when an event of a test with one write a second was written.
func eachSecond(t *testing.T, name string) time.Duration {
	t.Helper()

	n, err := strconv.Atoi(strings.TrimPrefix(name, "o-"))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n) * second
}
