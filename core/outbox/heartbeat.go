package outbox

import (
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// hastenIfChanged makes a heartbeat due when the last one is not true any more. An event that grows
// old is no news, because no heartbeat arrives before it. Its delivery is.
func (l *lane) hastenIfChanged() {
	now := time.Now()
	if l.schedule.number == 0 || now.Sub(l.schedule.checked) < checkEvery {
		return
	}

	l.schedule.checked = now
	present := l.opts.Heartbeat(l.manager)
	disconnects := l.opts.Disconnects()

	l.mu.Lock()
	defer l.mu.Unlock()

	if disconnects != l.schedule.disconnects {
		l.schedule.disconnects = disconnects
		l.schedule.scheduleReconnect(now.Add(l.opts.jitter(reconnectWithin)))
	}

	last := &l.schedule.reported
	isOutdated := last.isOutdated(stateOf(&present), losses(&present, l.counts.Dropped))
	hasDelivered := last.oldest > oldBacklog && l.oldestAge(now) <= oldBacklog
	if isOutdated || hasDelivered {
		l.schedule.hastenHeartbeat(now)
	}
}

// nextHeartbeat makes a heartbeat, and schedules the one after. The resends that the last one
// leaves to the control plane count as pending.
func (l *lane) nextHeartbeat(now time.Time) *core.Heartbeat {
	interval := l.opts.HeartbeatInterval
	s := &l.schedule
	s.number++
	s.sent = now
	s.next = now.Add(interval - l.opts.jitter(interval/10)) // Up to a tenth early.

	heartbeat := &core.Heartbeat{
		ID:            l.newID("heartbeat-", s.number),
		Time:          now,
		Number:        s.number,
		Interval:      interval,
		Sequence:      l.sequence,
		Pending:       l.counts.Pending,
		OldestPending: l.oldestAge(now),
		Dropped:       maps.Clone(l.counts.Dropped),
		Interruption:  l.pause.interruption,
	}

	if l.size.large {
		heartbeat.Sequence = l.arrived() // It travels alone, before the numbers that wait.
	}
	s.named = heartbeat.Sequence

	if s.leaving == leaves {
		s.leaving = left
		heartbeat.Leaving = true
		heartbeat.Pending += int64(len(l.resends))
	}

	return heartbeat
}

// fillHeartbeat adds the fields that the outbox does not know to the heartbeat of a batch, if it
// has one. The caller is the dispatcher, without the lock.
func (l *lane) fillHeartbeat(heartbeat *core.Heartbeat) {
	if heartbeat == nil {
		return
	}

	own := *heartbeat
	*heartbeat = l.opts.Heartbeat(l.manager)
	heartbeat.ID = own.ID
	heartbeat.Time = own.Time
	heartbeat.Number = own.Number
	heartbeat.Interval = own.Interval
	heartbeat.Sequence = own.Sequence
	heartbeat.Leaving = own.Leaving
	heartbeat.Dropped = own.Dropped
	heartbeat.Pending = own.Pending
	heartbeat.OldestPending = own.OldestPending
	heartbeat.Interruption = own.Interruption

	if !heartbeat.LastReview.IsZero() {
		// The age counts, and a wall clock that was set back in between does not change it.
		heartbeat.LastReview = own.Time.Add(-own.Time.Sub(heartbeat.LastReview))
	}
	l.schedule.noteReported(heartbeat)
}

// scheduleLast makes the last heartbeat due when nothing is pending, and reports whether it was
// sent or is not needed. The events that come after it are refused. A manager that cannot be
// reached gets no last heartbeat.
func (l *lane) scheduleLast(now time.Time) (done bool) {
	if l.counts.Pending > 0 {
		return false
	}

	isUnreachable := l.pause.isOn() && l.schedule.leaving == stays
	if l.schedule.next.IsZero() || isUnreachable {
		return true
	}

	if l.schedule.leaving == stays {
		l.schedule.leaving = leaves
		l.schedule.next = now
		signal(l.wake)
	}
	return false
}
