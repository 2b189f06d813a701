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
	// maxNotes bounds the lines that wait for the logger. Those beyond are lost.
	maxNotes = 100
	// flushTimeout bounds the time for which Start waits for a logger that hangs.
	flushTimeout = time.Second
)

// note keeps a log line for a goroutine of its own: a logger that hangs costs lines, but no time.
// It never blocks. The caller may hold the lock.
func (o *Outbox) note(level slog.Level, text string, attrs ...slog.Attr) {
	record := slog.NewRecord(time.Now(), level, text, 0)
	record.AddAttrs(attrs...)
	select {
	case o.notes <- record:
	default:
	}
}

// startLog writes notes until end is called, which waits for the last of them.
func (o *Outbox) startLog() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		o.writeNotes(stop)
	}()
	return func() {
		close(stop)
		select {
		case <-ended:
		case <-time.After(flushTimeout):
		}
	}
}

// writeNotes writes notes until stop is closed, and then those that wait.
func (o *Outbox) writeNotes(stop <-chan struct{}) {
	for {
		select {
		case n := <-o.notes:
			o.write(n)
		case <-stop:
			for range len(o.notes) {
				o.write(<-o.notes)
			}
			return
		}
	}
}

func (o *Outbox) write(record slog.Record) {
	handler := o.opts.Logger.Handler()
	if handler.Enabled(context.Background(), record.Level) {
		_ = handler.Handle(context.Background(), record) // A logger has nowhere to report it, either.
	}
}

// line is the last line about a lasting state.
type line struct {
	reason string
	at     time.Time
}

// isDue reports whether a line with that reason is to be written now: when the reason changed, and
// from time to time.
func (l *line) isDue(reason string, now time.Time) bool {
	if reason == l.reason && now.Sub(l.at) < logEvery {
		return false
	}
	l.reason, l.at = reason, now
	return true
}

// lines has the times of the last lines by reason, where several reasons alternate.
type lines map[string]time.Time

func (l lines) isDue(reason string, now time.Time) bool {
	if last, logged := l[reason]; logged && now.Sub(last) < logEvery {
		return false
	}
	l[reason] = now
	return true
}

// maxStrangerLines bounds the lines with one text and reason in logEvery, over all strangers.
const maxStrangerLines = 5

// strangers counts the lines about managers that are not configured and took no batch yet. Any
// client of the webhook can invent such names.
type strangers struct {
	began time.Time
	lines map[string]int // by text and reason
}

// add counts a line, and returns the number of its kind.
func (s *strangers) add(kind string, now time.Time) int {
	if s.lines == nil || now.Sub(s.began) >= logEvery {
		*s = strangers{now, make(map[string]int)}
	}
	s.lines[kind]++
	return s.lines[kind]
}

// warn notes a line about a lane. It reports whether the line was kept. The caller holds the lock.
func (o *Outbox) warn(l *lane, text, reason string, now time.Time, attrs ...slog.Attr) bool {
	attrs = append([]slog.Attr{slog.String("manager", string(l.manager)), slog.String("reason", reason)}, attrs...)
	if !l.configured && !l.reached {
		n := o.strangers.add(text+" "+reason, now)
		if n > maxStrangerLines {
			return false
		}
		if n == maxStrangerLines {
			attrs = append(attrs, slog.String("note", "lines about further managers are left out for "+logEvery.String()))
		}
	}
	o.note(slog.LevelWarn, text, attrs...)
	return true
}

func (o *Outbox) notePaused(l *lane, err error, wait time.Duration, now time.Time) {
	if reason := core.Reason(err); l.logged.isDue(reason, now) {
		l.noted = o.warn(l, "manager does not take events, they are kept and sent again", reason, now,
			slog.Int("attempts", l.failures), slog.Int64("pending", l.counts.Pending), slog.Duration("wait", wait),
			slog.Any("error", err))
	}
}

// noteResumed keeps the time of the last line. A manager that comes and goes has one pair of lines
// in logEvery.
func (o *Outbox) noteResumed(l *lane) {
	if !l.noted {
		return
	}
	l.noted = false
	o.note(slog.LevelInfo, "manager takes events again",
		slog.String("manager", string(l.manager)), slog.Int("attempts", l.failures))
}

func (o *Outbox) noteDropped(l *lane, e *entry, err error, now time.Time) {
	text := "event refused and given up"
	if !e.Resync && len(o.targets(l)) > 0 {
		text += ", a resync stands in"
	}
	if reason := core.Reason(err); l.drops.isDue(e.KindWord()+" "+reason, now) {
		o.warn(l, text, reason, now, slog.String("kind", e.KindWord()), slog.Any("error", err))
	}
}

func (o *Outbox) noteOverflow(l *lane, now time.Time) {
	if l.drops.isDue(ReasonOverflow, now) {
		o.warn(l, "outbox is full: events are dropped, a resync stands in", ReasonOverflow, now,
			slog.Int("max_keys", o.opts.MaxKeys))
	}
}

func (o *Outbox) noteHeartbeat(l *lane, err error, now time.Time) {
	if reason := core.Reason(err); l.pulse.logged.isDue(reason, now) {
		o.warn(l, "heartbeat refused", reason, now, slog.Any("error", err))
	}
}

func (o *Outbox) noteForwarded(l *lane, c call, took time.Duration) {
	if o.opts.Logger.Enabled(context.Background(), slog.LevelDebug) {
		o.note(slog.LevelDebug, "batch forwarded", slog.String("manager", string(l.manager)),
			slog.Int("events", len(c.entries)), slog.Duration("took", took), slog.Any("error", c.err))
	}
}

func (o *Outbox) noteTooManyManagers(manager core.Manager, now time.Time) {
	if o.logged.isDue(reasonTooManyManagers, now) {
		o.note(slog.LevelWarn, "too many managers, the events of another one are dropped without a resync",
			slog.String("manager", string(manager)), slog.Int("limit", o.opts.MaxManagers))
	}
}

func (o *Outbox) noteEvicted(l *lane, now time.Time) {
	if o.logged.isDue(reasonUnknownManager, now) {
		o.note(slog.LevelWarn, "too many managers, the events of one that the control plane never knew are dropped",
			slog.String("manager", string(l.manager)), slog.Int("limit", o.opts.MaxManagers))
	}
}

func (o *Outbox) noteShutdown(l *lane, events int64) {
	o.note(slog.LevelWarn, "events were not delivered before the shutdown",
		slog.String("manager", string(l.manager)), slog.Int64("events", events))
}
