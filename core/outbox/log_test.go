package outbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// logBuffer is a bytes.Buffer for concurrent use.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// logReasons returns the reasons of the lines that contain a text.
func logReasons(log, text string) (reasons []string) {
	for line := range strings.Lines(log) {
		if _, rest, ok := strings.Cut(line, "reason="); ok && strings.Contains(line, text) {
			reasons = append(reasons, strings.Fields(rest)[0])
		}
	}
	return reasons
}

// An outage has several causes, one after the other. Each of them is logged, and the one that lasts
// every 5 min.
func TestChangeOfReasonIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		start := time.Now()
		p := newPlane(func(context.Context, int, core.Batch) error {
			switch passed := time.Since(start); {
			case passed < 7*time.Second:
				return errDown
			case passed < 21*time.Second:
				return verdict{reason: "not_ready"}
			case passed < time.Hour:
				return verdict{reason: "unauthenticated"}
			default:
				return nil
			}
		})
		o, stop := run(t, p, outbox.Options{Logger: log.logger(), MaxBackoff: 4 * time.Second})
		o.Accept(kyma, named("a"))
		time.Sleep(2 * time.Hour)
		stop()
		reasons := logReasons(log.String(), "does not take events")
		if n := len(reasons); n < 13 || n > 15 {
			t.Errorf("%d lines in an hour, want one for each reason and one every 5 min:\n%s", n, &log)
		}
		if got, want := slices.Compact(reasons), []string{"other", "not_ready", "unauthenticated"}; !slices.Equal(got, want) {
			t.Errorf("reasons %q, want %q", got, want)
		}
		if n := strings.Count(log.String(), "takes events again"); n != 1 {
			t.Errorf("the end is logged %d times, want once:\n%s", n, &log)
		}
	})
}

// Reasons that alternate are logged once each.
func TestAlternatingRefusalsAreLoggedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(func(_ context.Context, n int, batch core.Batch) error {
			if batch.Events[0].Resync {
				return nil
			}
			return verdict{reason: []string{"malformed", "too_large"}[n%2], permanent: true}
		})
		o, stop := run(t, p, outbox.Options{Logger: log.logger(), InFlight: 1})
		for i := range 100 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		time.Sleep(time.Minute)
		stop()
		got := slices.Sorted(slices.Values(logReasons(log.String(), "given up")))
		if want := []string{"malformed", "too_large"}; !slices.Equal(got, want) {
			t.Errorf("reasons %q, want %q", got, want)
		}
	})
}

// A full outbox is logged once every 5 minutes for each manager that loses events.
func TestOverflowIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(failTimes(1<<30, errDown))
		o, stop := run(t, p, outbox.Options{Logger: log.logger(), MaxKeys: 3, DrainTimeout: -1})
		for i := range 10 {
			o.Accept(kyma, named(strconv.Itoa(i)))
		}
		o.Accept("other", named("a")) // kyma gives way.
		time.Sleep(6 * time.Minute)
		o.Accept(kyma, named("late"))
		stop()
		if n := strings.Count(log.String(), "outbox is full: events are dropped, a resync stands in"); n != 2 {
			t.Errorf("%d lines, want one at once and one after 5 min:\n%s", n, &log)
		}
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
		p := newPlane(func(_ context.Context, n int, _ core.Batch) error {
			if n%2 == 0 {
				return verdict{reason: "reason_" + strconv.Itoa(n)}
			}
			return nil
		})
		o, stop := run(t, p, outbox.Options{Logger: slog.New(sink), Settle: -1, MaxManagers: 1})
		for i := range 1000 {
			began := time.Now()
			o.Accept(kyma, named(strconv.Itoa(i)))
			o.Accept("another", named(strconv.Itoa(i))) // Too many managers: a line.
			if took := time.Since(began); took > 0 {
				t.Fatalf("Accept took %v, want no wait", took)
			}
			time.Sleep(time.Second)
		}
		wantCounts(t, o, outbox.Counts{Accepted: 1000, Delivered: 1000})
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the shutdown took %v, want 1 s at most", took)
		}
		close(sink.freed)
		synctest.Wait()
		if n := sink.lines.Load(); n < 100 || n > 110 {
			t.Errorf("%d lines were written after the sink had recovered, want about 100", n)
		}
	})
}

// Lines that were noted before the end are written.
func TestLastLinesAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(failTimes(1<<30, errDown))
		o, stop := run(t, p, outbox.Options{Logger: log.logger(), DrainTimeout: -1})
		o.Accept(kyma, named("a"))
		stop()
		if !strings.Contains(log.String(), "events were not delivered before the shutdown") {
			t.Errorf("the log does not name the events that were lost:\n%s", &log)
		}
	})
}

// Strangers can invent names of managers. Each would have lines of its own.
func TestInventedManagersShareTheirLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		p := newPlane(func(context.Context, int, core.Batch) error { return verdict{reason: "unknown_manager"} })
		o, stop := run(t, p, outbox.Options{Logger: log.logger(), MaxBackoff: 4 * time.Second, Managers: []core.Manager{kyma}})
		for i := range 99 {
			o.Accept(core.Manager("invented-"+strconv.Itoa(i)), named("a"))
		}
		o.Accept(kyma, named("a"))
		time.Sleep(time.Minute)
		stop()
		const most = 6 // Five for all of them, and one of the manager that is configured.
		if n := len(logReasons(log.String(), "does not take events")); n > most || n < 2 {
			t.Errorf("%d lines of 99 invented managers, want at most %d:\n%s", n, most, &log)
		}
		for _, want := range []string{"manager=kyma", "left out"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %q in the log:\n%s", want, &log)
			}
		}
	})
}
