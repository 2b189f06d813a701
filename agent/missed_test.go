package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

func TestStalls(t *testing.T) {
	t.Parallel()

	const busy = longestStall - time.Millisecond
	tests := []struct {
		name    string
		ticks   []time.Duration // between one and the next
		stalls  int
		resyncs []time.Duration // since the beginning
	}{
		{"a busy machine", []time.Duration{missedTick, busy, busy, missedTick, busy}, 0, nil},
		{
			"one",
			[]time.Duration{missedTick, 2 * time.Second, missedTick},
			1,
			[]time.Duration{missedTick + 2*time.Second},
		},
		{"as short as it can matter", []time.Duration{longestStall}, 1, []time.Duration{longestStall}},
		{
			"a second one soon after has its resync, too, but later",
			[]time.Duration{
				2 * time.Second, 2 * time.Second, 10 * time.Second, 18*time.Second - missedTick, missedTick, missedPace,
			},
			5,
			[]time.Duration{2 * time.Second, 32 * time.Second, 62 * time.Second},
		},
		{
			"one that is long over",
			[]time.Duration{2 * time.Second, missedPace, busy, busy},
			2,
			[]time.Duration{2 * time.Second, 32 * time.Second},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			began := time.Now()
			now := began
			var (
				stalls  int
				resyncs []time.Duration
			)

			w := &missedWatch{
				now:     time.Now,
				stalled: func(hook.Stall) { stalls++ },
				resync:  func() { resyncs = append(resyncs, now.Sub(began)) },
				log:     slog.New(slog.DiscardHandler),
				last:    began,
			}
			for _, after := range test.ticks {
				now = now.Add(after)
				w.requestDue(t.Context(), now)
			}

			if diff := cmp.Diff(test.resyncs, resyncs); diff != "" || stalls != test.stalls {
				t.Errorf("%d stalls, want %d; resyncs (-want +have):\n%s", stalls, test.stalls, diff)
			}
		})
	}
}

// In a suspended machine the clock of Go stands still. The wall clock is set afterwards.
func TestASuspendedMachineIsAStall(t *testing.T) {
	t.Parallel()

	stalls := 0
	w := &missedWatch{stalled: func(hook.Stall) { stalls++ }, resync: func() {}, log: slog.New(slog.DiscardHandler), last: time.Now()}
	for _, after := range []time.Duration{0, -time.Hour, time.Second} { // A clock that is set back is none.
		now := w.last.Add(after)

		// See time.Time: ext is the reading of the other clock.
		parts := (*struct {
			wall uint64
			ext  int64
		})(unsafe.Pointer(&now))

		parts.ext -= int64(after)
		w.requestDue(t.Context(), now)
	}

	if stalls != 1 {
		t.Errorf("%d stalls, want 1", stalls)
	}
}

// An agent that runs is no stall, for however long.
func TestAgentThatRunsDoesNotStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &missedWatch{
			now:     time.Now,
			stalled: func(hook.Stall) { t.Error("a stall") }, resync: func() { t.Error("a resync") }, log: slog.New(slog.DiscardHandler),
		}

		stop := component{"stalls", w.watchClock}.runInBackground(t.Context(), make(chan struct{}, 1))
		time.Sleep(time.Hour) // It costs no time.
		check(t, stop())
	})
}

// A resync that is due later is requested before the agent ends.
func TestMissedBeforeTheEndLeadsToAResync(t *testing.T) {
	t.Parallel()

	resyncs := 0
	w := &missedWatch{
		now:     time.Now,
		stalled: func(hook.Stall) {}, resync: func() { resyncs++ }, log: slog.New(slog.DiscardHandler),
		missed: missed{stalls: 1}, next: time.Now().Add(missedPace),
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.watchClock(ctx); err != nil || resyncs != 1 {
		t.Errorf("%d resyncs (%v), want 1", resyncs, err)
	}
}

// However many connections are closed, there is at most one resync every missedPace, and one after
// the last of them.
func TestClosedConnectionsArePaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var resyncs []time.Duration
		w := &missedWatch{
			now:     time.Now,
			stalled: func(hook.Stall) { t.Error("a stall") }, resync: func() { resyncs = append(resyncs, time.Since(began)) },
			log: slog.New(slog.DiscardHandler),
		}

		stop := component{"missed", w.watchClock}.runInBackground(t.Context(), make(chan struct{}, 1))
		for range 100 {
			w.reportMissed()
			time.Sleep(missedPace / 60)
		}

		time.Sleep(time.Hour)
		check(t, stop())
		want := []time.Duration{missedTick, missedTick + missedPace, missedTick + 2*missedPace}
		if diff := cmp.Diff(want, resyncs); diff != "" {
			t.Errorf("resyncs (-want +have):\n%s", diff)
		}
	})
}

// An agent ends when its transport hangs, so that its open connection does not keep it fresh. An
// agent that waits as the control plane asks goes on.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interval time.Duration
		forward  func(ctx context.Context, hang <-chan struct{}) error
		want     error
	}{
		"a call that does not end": {5 * time.Minute, func(_ context.Context, hang <-chan struct{}) error { <-hang; return nil }, errHangs},
		"at the default interval":  {0, func(_ context.Context, hang <-chan struct{}) error { <-hang; return nil }, nil},
		"slow calls":               {5 * time.Minute, func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() }, nil},
		"asked to wait":            {5 * time.Minute, func(context.Context, <-chan struct{}) error { return later{} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				hang := make(chan struct{})
				agent := must(New(t.Context(), Connection{}, Parts{
					Source: func(ctx context.Context, _ *Inbox) error { <-ctx.Done(); return nil },
					Listen: func(context.Context, string, string) (net.Listener, error) { return make(deaf), nil },
					Transport: core.ForwarderFunc(func(ctx context.Context, _ core.Manager, _ core.Batch) error {
						calls++
						if calls == 1 {
							return nil
						}

						return test.forward(ctx, hang)
					}),
				}, Options{
					Managers: []core.Manager{"widgets"}, Outbox: Outbox{HeartbeatInterval: test.interval},
				}))(t)

				time.AfterFunc(20*time.Minute, func() { close(hang) })
				ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute)
				defer stop()
				if err := agent.Start(ctx); !errors.Is(err, test.want) {
					t.Errorf("it ended with %v, want %v", err, test.want)
				}

				<-ctx.Done() // The parts of an agent that hangs end, too.
			})
		})
	}
}

// later asks for a wait.
type later struct{}

func (later) Error() string             { return "later" }
func (later) RetryAfter() time.Duration { return 4 * time.Minute }

// deaf accepts no connection until it is closed.
type deaf chan struct{}

func (d deaf) Accept() (net.Conn, error) { <-d; return nil, net.ErrClosed }
func (d deaf) Close() error              { close(d); return nil }
func (deaf) Addr() net.Addr              { return &net.TCPAddr{} }
