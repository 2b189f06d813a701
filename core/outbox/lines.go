package outbox

import (
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// warnPaced notes a line about the lane when it is due, and reports whether it is.
func (l *lane) warnPaced(now time.Time, text string, reason core.Reason, attrs ...slog.Attr) (due bool) {
	pace := l.pace
	isStranger := !l.configured && !l.reached
	if isStranger {
		pace = l.log.strangers
		attrs = append(attrs, slog.String("note", "lines about further managers are left out for "+logEvery.String()))
	}

	suppressed, due := pace.Take(text+" "+string(reason), now)
	if due {
		l.log.noteLine(slog.LevelWarn, text, append([]slog.Attr{
			slog.String("manager", string(l.manager)),
			slog.String("reason", string(reason)),
			slog.Int("suppressed", suppressed),
		}, attrs...)...)
	}
	return due
}

func (l *lane) notePaused(err error, wait time.Duration, now time.Time) {
	due := l.warnPaced(now, "manager does not accept events: the agent keeps them and retries", core.ReasonOf(err),
		slog.Int("attempts", l.pause.failures), slog.Int64("pending", l.counts.Pending), slog.Duration("wait", wait),
		slog.Any("error", err))
	l.pause.noted = l.pause.noted || due
}

// noteResumed follows a line about the pause only. A manager that comes and goes has one pair of
// lines in logEvery.
func (l *lane) noteResumed() {
	if !l.pause.noted {
		return
	}
	l.pause.noted = false
	l.log.noteLine(slog.LevelInfo, "manager accepts events again",
		slog.String("manager", string(l.manager)), slog.Int("attempts", l.pause.failures))
}

func (l *lane) noteDropped(e *entry, err error, isReplaced bool, now time.Time) {
	text := "event refused and given up"
	if isReplaced {
		text += ": a resync replaces it"
	}
	l.warnPaced(now, text, core.ReasonOf(err), slog.String("kind", e.KindWord()), slog.Any("error", err))
}

func (l *lane) noteOverflow(now time.Time) {
	l.warnPaced(now, "outbox is full: the agent drops events, and a resync replaces them", ReasonOverflow,
		slog.Int("max_keys", l.opts.MaxKeys), slog.Int("max_bytes", l.opts.MaxBytes))
}

// noteLeft counts the events that a lane has when the outbox ends.
func (l *lane) noteLeft() {
	if n := l.counts.Pending; n > 0 {
		l.log.noteLine(slog.LevelWarn, "events were not delivered before the shutdown",
			slog.String("manager", string(l.manager)), slog.Int64("events", n))
	}
}
