package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

const (
	logEvery = 5 * time.Minute
	// maxNotes bounds the lines that wait for the logger. Those beyond are lost.
	maxNotes = 100
	// flushTimeout bounds the time for which Start waits for a logger that hangs.
	flushTimeout = time.Second
)

// log keeps lines for a goroutine of its own: a logger that hangs costs lines, but no time.
type log struct {
	logger *slog.Logger
	notes  chan slog.Record
	// strangers is the pace of all managers that are not configured and took no batch yet. Any
	// client of the webhook can invent such names.
	strangers *pacedlog.Pace
}

func newLog(logger *slog.Logger) log {
	return log{logger, make(chan slog.Record, maxNotes), pacedlog.NewPace(logEvery)}
}

// note keeps a line. It never blocks. The caller may hold the lock.
func (g *log) note(level slog.Level, text string, attrs ...slog.Attr) {
	record := slog.NewRecord(time.Now(), level, text, 0)
	record.AddAttrs(attrs...)
	select {
	case g.notes <- record:
	default:
	}
}

func (g *log) start() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.write(ctx)
	}()
	return func() {
		stop()
		select {
		case <-ended:
		case <-time.After(flushTimeout):
		}
	}
}

func (g *log) write(ctx context.Context) {
	handler := g.logger.Handler()
	for ctx.Err() == nil || len(g.notes) > 0 {
		select {
		case record := <-g.notes:
			if handler.Enabled(context.Background(), record.Level) {
				_ = handler.Handle(context.Background(), record) // A logger has nowhere to report it, either.
			}
		case <-ctx.Done():
		}
	}
}

// warn notes a line about the lane when it is due, and reports whether it is.
func (l *lane) warn(now time.Time, text string, reason core.Reason, attrs ...slog.Attr) (due bool) {
	pace := l.pace
	if !l.configured && !l.reached {
		pace = l.log.strangers
		attrs = append(attrs, slog.String("note", "lines about further managers are left out for "+logEvery.String()))
	}
	suppressed, due := pace.Take(text+" "+string(reason), now)
	if due {
		l.log.note(slog.LevelWarn, text, append([]slog.Attr{
			slog.String("manager", string(l.manager)), slog.String("reason", string(reason)), slog.Int("suppressed", suppressed),
		}, attrs...)...)
	}
	return due
}

func (l *lane) notePaused(err error, wait time.Duration, now time.Time) {
	due := l.warn(now, "manager does not accept events: the agent keeps them and retries", core.ReasonOf(err),
		slog.Int("attempts", l.failures), slog.Int64("pending", l.counts.Pending), slog.Duration("wait", wait),
		slog.Any("error", err))
	l.noted = l.noted || due
}

// noteResumed follows a line about the pause only. A manager that comes and goes has one pair of
// lines in logEvery.
func (l *lane) noteResumed() {
	if !l.noted {
		return
	}
	l.noted = false
	l.log.note(slog.LevelInfo, "manager accepts events again",
		slog.String("manager", string(l.manager)), slog.Int("attempts", l.failures))
}

func (l *lane) noteDropped(e *entry, err error, now time.Time) {
	text := "event refused and given up"
	if !e.Resync && len(l.targets()) > 0 {
		text += ": a resync replaces it"
	}
	l.warn(now, text, core.ReasonOf(err), slog.String("kind", e.KindWord()), slog.Any("error", err))
}

func (l *lane) noteOverflow(now time.Time) {
	l.warn(now, "outbox is full: the agent drops events, and a resync replaces them", ReasonOverflow,
		slog.Int("max_keys", l.opts.MaxKeys), slog.Int("max_bytes", l.opts.MaxBytes))
}

func (g *log) warnLimit(now time.Time, text string, manager core.Manager, limit int) {
	if suppressed, due := g.strangers.Take(text, now); due {
		g.note(slog.LevelWarn, text, slog.String("manager", string(manager)), slog.Int("limit", limit),
			slog.Int("suppressed", suppressed))
	}
}
