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

// log keeps lines for a goroutine that writes them: a logger that hangs costs lines, but no time.
type log struct {
	logger *slog.Logger
	notes  chan slog.Record
	// strangers is the pace of all managers that are not configured and took no batch yet. Any
	// client of the webhook can invent such names.
	strangers *pacedlog.Pace
}

func newLog(logger *slog.Logger) log {
	return log{
		logger:    logger,
		notes:     make(chan slog.Record, maxNotes),
		strangers: pacedlog.NewPace(logEvery),
	}
}

// noteLine keeps a line. It never blocks. The caller may hold the lock.
func (g *log) noteLine(level slog.Level, text string, attrs ...slog.Attr) {
	record := slog.NewRecord(time.Now(), level, text, 0)
	record.AddAttrs(attrs...)

	select {
	case g.notes <- record:
	default:
	}
}

// startWriter starts the goroutine that writes the lines. The function that it returns waits for a
// logger that hangs, but not for long.
func (g *log) startWriter() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.writeLines(ctx)
	}()

	return func() {
		stop()
		select {
		case <-ended:
		case <-time.After(flushTimeout):
		}
	}
}

func (g *log) writeLines(ctx context.Context) {
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

// warnLimit notes a line about managers without a lane when it is due.
func (g *log) warnLimit(now time.Time, text string, manager core.Manager, limit int) {
	suppressed, isDue := g.strangers.Take(text, now)
	if isDue {
		g.noteLine(slog.LevelWarn, text, slog.String("manager", string(manager)), slog.Int("limit", limit),
			slog.Int("suppressed", suppressed))
	}
}
