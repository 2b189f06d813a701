package agent

import (
	"context"
	"log/slog"
	"maps"
	"time"
)

// lineLimiter logs each change of a problem, and the same problem again from time to time. It is
// not safe for concurrent use.
type lineLimiter struct {
	to *slog.Logger

	// last is the last line, empty after the end of a problem. logged has the lines within
	// webhooksLogEvery.
	last   string
	logged map[string]time.Time
	// used counts the lines, less one for each linesPace since. An hour has at most maxLines lines,
	// and one for each linesPace.
	used   int
	usedAt time.Time
}

// The bounds of a [lineLimiter]. Problems that alternate, or come and go, may use half of maxLines,
// so that there is always a line for a new one.
const (
	// webhooksLogEvery is the time after which the same line is logged again.
	webhooksLogEvery = 5 * time.Minute

	maxLines  = 20
	linesPace = 2 * time.Minute
)

func (l *lineLimiter) warnPaced(ctx context.Context, message, problem string) {
	l.noteLine(ctx, slog.LevelWarn, message, problem)
}

func (l *lineLimiter) noteLine(ctx context.Context, level slog.Level, message, problem string) {
	l.writeLine(ctx, level, message, "problem", problem)
}

// noteEnd logs that a problem has ended.
func (l *lineLimiter) noteEnd(ctx context.Context, message, before string) {
	l.forgetLast()
	l.writeLine(ctx, slog.LevelInfo, message, "before", before)
}

func (l *lineLimiter) writeLine(ctx context.Context, level slog.Level, message, name, text string) {
	if l.takeLine(message+text, time.Now()) {
		l.to.Log(ctx, level, message, slog.String(name, text)) //nolint:sloglint // Each caller has constants.
	}
}

// takeLine reports whether a line is due.
func (l *lineLimiter) takeLine(line string, now time.Time) bool {
	maps.DeleteFunc(l.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= webhooksLogEvery })
	l.restoreLines(now)
	_, isLogged := l.logged[line]
	isScarce := l.used >= maxLines/2
	if l.used >= maxLines {
		return false
	}
	if isLogged && isScarce {
		return false
	}
	if isLogged && line == l.last {
		return false
	}

	if l.logged == nil {
		l.logged = make(map[string]time.Time)
	}
	l.logged[line] = now
	l.last = line
	l.used++
	return true
}

// restoreLines lets lines of the past count no more.
func (l *lineLimiter) restoreLines(now time.Time) {
	passed := int(now.Sub(l.usedAt) / linesPace)
	if l.used -= passed; l.used <= 0 {
		l.used = 0
		l.usedAt = now
		return
	}
	l.usedAt = l.usedAt.Add(time.Duration(passed) * linesPace)
}

// forgetLast makes the next problem a new one.
func (l *lineLimiter) forgetLast() { l.last = "" }
