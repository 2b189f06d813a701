package outbox_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// reasons returns the reasons of the lines that contain a text.
func (l *logBuffer) reasons(text string) (reasons []string) {
	for line := range strings.Lines(l.String()) {
		if _, rest, ok := strings.Cut(line, "reason="); ok && strings.Contains(line, text) {
			reasons = append(reasons, strings.Fields(rest)[0])
		}
	}
	return reasons
}

func wantReasons(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("reasons %q, want %q", got, want)
	}
}

// An outage has several causes, one after the other. Each of them is logged, and the one that lasts
// every 5 min.
func TestChangeOfReasonIsLogged(t *testing.T) {
	inBubble(t, scene{
		opts: outbox.Options{MaxBackoff: 4 * second},
		answer: func(context.Context, int, core.Batch) error {
			switch passed := elapsed(); {
			case passed < 7*second:
				return errDown
			case passed < 21*second:
				return verdict{reason: "not_ready"}
			case passed < time.Hour:
				return verdict{reason: "unauthenticated"}
			default:
				return nil
			}
		},
	}, func(w *world) {
		w.write("a")
		time.Sleep(2 * time.Hour)
		w.stop()
		reasons := w.log.reasons("does not accept events")
		w.wantBetween(13, len(reasons), 15, "lines in an hour, one for each reason and one every 5 min")
		wantReasons(t, slices.Compact(reasons), "other", "not_ready", "unauthenticated")
		w.wantBetween(1, w.log.count("accepts events again"), 1, "lines about the end")
	})
}

// Reasons that alternate are logged once each.
func TestAlternatingRefusalsAreLoggedOnceEach(t *testing.T) {
	inBubble(t, scene{
		opts: outbox.Options{InFlight: 1},
		answer: func(_ context.Context, n int, batch core.Batch) error {
			if batch.Events[0].Resync {
				return nil
			}
			return verdict{reason: []string{"malformed", "too_large"}[n%2], permanent: true}
		},
	}, func(w *world) {
		w.writeMany(100, "", 0)
		time.Sleep(time.Minute)
		w.stop()
		wantReasons(t, slices.Sorted(slices.Values(w.log.reasons("given up"))), "malformed", "too_large")
	})
}

// A full outbox is logged once every 5 minutes for each manager that loses events. Lines that were
// noted before the end are written.
func TestOverflowIsLogged(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxKeys: 3, DrainTimeout: -1}, answer: always(errDown)}, func(w *world) {
		w.writeMany(10, "", 0)
		w.Accept("other", named("a")) // kyma gives way.
		time.Sleep(6 * time.Minute)
		w.write("late")
		w.stop()
		w.wantBetween(2, w.log.count("outbox is full: the agent drops events, and a resync replaces them"), 2, "lines, one at once and one after 5 min")
		w.wantBetween(1, w.log.count("events were not delivered before the shutdown"), 2, "lines about the events that are lost")
	})
}

// stalled is a log sink that hangs from its first line on.
type stalled struct {
	slog.Handler
	freed chan struct{}
	lines atomic.Int64
}

func (s *stalled) Handle(ctx context.Context, r slog.Record) error {
	<-s.freed
	s.lines.Add(1)
	return s.Handler.Handle(ctx, r)
}

func (s *stalled) Enabled(context.Context, slog.Level) bool { return true }

// A log sink that hangs costs lines, but no time: neither events nor their forwarding nor the
// shutdown wait for it.
func TestStalledLogCostsNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &stalled{Handler: slog.DiscardHandler, freed: make(chan struct{})}
		w := newWorld(t, scene{
			opts: outbox.Options{Logger: slog.New(sink), Settle: -1, MaxManagers: 1},
			answer: func(_ context.Context, n int, _ core.Batch) error {
				if n%2 == 0 {
					return verdict{reason: "reason_" + strconv.Itoa(n)}
				}
				return nil
			},
		})

		w.start()
		for i := range 1000 {
			took := took(func() {
				w.write(strconv.Itoa(i))
				w.Accept("another", named(strconv.Itoa(i))) // Too many managers: a line.
			})
			if took > 0 {
				t.Fatalf("Accept took %v, want no wait", took)
			}
			time.Sleep(second)
		}

		w.wantDelivered(1000)
		if took := took(w.stop); took > second {
			t.Errorf("the shutdown took %v, want 1 s at most", took)
		}

		close(sink.freed)
		synctest.Wait()
		w.wantBetween(100, int(sink.lines.Load()), 110, "lines after the sink had recovered")
	})
}

// Strangers can invent names of managers. Each name would get separate lines.
func TestInventedManagersShareTheirLines(t *testing.T) {
	inBubble(t, scene{
		opts:   outbox.Options{MaxBackoff: 4 * second, Managers: []core.Manager{kyma}},
		answer: always(verdict{reason: "unknown_manager"}),
	}, func(w *world) {
		w.inventMany(99, "invented-", 0, named("a"))
		w.write("a")
		time.Sleep(time.Minute)
		w.stop()
		const most = 6 // Five for all of them, and one of the manager that is configured.
		w.wantBetween(2, len(w.log.reasons("does not accept events")), most, "lines of 99 invented managers")

		for _, want := range []string{"manager=kyma", "left out"} {
			w.wantBetween(1, w.log.count(want), 1000, "times "+want)
		}
	})
}
