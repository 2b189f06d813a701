package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// logEvery is the pace of lines about one state that lasts.
	logEvery = 5 * time.Minute
	// maxNotes bounds the lines that wait for the end of the lock.
	maxNotes = 100
)

// note is a log line that was found under the lock, and is written without it.
type note struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

// note keeps a line for the next unlock. The caller holds the lock.
func (o *Outbox) note(level slog.Level, text string, attrs ...slog.Attr) {
	if len(o.notes) < maxNotes {
		o.notes = append(o.notes, note{level, text, attrs})
	}
}

// unlock releases the lock, then writes the notes.
func (o *Outbox) unlock() {
	notes := o.notes
	o.notes = nil
	o.mu.Unlock()

	for _, n := range notes {
		o.opts.Logger.LogAttrs(context.Background(), n.level, n.text, n.attrs...)
	}
}

// logged is the last line about a lasting state.
type logged struct {
	reason string
	at     time.Time
}

// isDue reports whether a line with that reason is to be written now: when the reason changed, and from
// time to time.
func (l *logged) isDue(reason string, now time.Time) bool {
	if reason == l.reason && now.Sub(l.at) < logEvery {
		return false
	}

	l.reason, l.at = reason, now

	return true
}

func (o *Outbox) notePaused(l *lane, err error, wait time.Duration, now time.Time) {
	if reason := core.Reason(err); l.logged.isDue(reason, now) {
		l.pauseLogged = true
		o.note(slog.LevelWarn, "manager does not take events, they are kept and sent again",
			slog.String("manager", string(l.manager)), slog.String("reason", reason), slog.Int("attempts", l.failures),
			slog.Int64("pending", l.counts.Pending), slog.Duration("wait", wait), slog.Any("error", err))
	}
}

// noteResumed keeps what was logged last: a manager that comes and goes has one pair of lines every 5 min.
func (o *Outbox) noteResumed(l *lane) {
	if !l.pauseLogged {
		return
	}

	l.pauseLogged = false
	o.note(slog.LevelInfo, "manager takes events again",
		slog.String("manager", string(l.manager)), slog.Int("attempts", l.failures))
}

func (o *Outbox) noteDropped(l *lane, err error, now time.Time) {
	if reason := core.Reason(err); l.pulse.dropped.isDue(reason, now) {
		o.note(slog.LevelWarn, "event refused and given up, a resync stands in",
			slog.String("manager", string(l.manager)), slog.String("reason", reason), slog.Any("error", err))
	}
}

func (o *Outbox) noteHeartbeat(l *lane, err error, now time.Time) {
	if reason := core.Reason(err); l.pulse.logged.isDue(reason, now) {
		o.note(slog.LevelWarn, "heartbeat refused", slog.String("manager", string(l.manager)),
			slog.String("reason", reason), slog.Any("error", err))
	}
}

func (o *Outbox) noteTooManyManagers(manager core.Manager, now time.Time) {
	if o.logged.isDue(ReasonTooManyManagers, now) {
		o.note(slog.LevelWarn, "too many managers, the events of another one are dropped without a resync",
			slog.String("manager", string(manager)), slog.Int("limit", o.opts.MaxManagers))
		signal(o.added)
	}
}
