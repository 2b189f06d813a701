package outbox

import "time"

// maxRefused bounds the events of a batch that were refused before, so that they do not hold up new
// events.
const maxRefused = 50

// takeBatch removes up to limit events that are due, and reports whether a heartbeat is due, too.
// Numbers that did not arrive are among the events, as those are the first. When there is nothing
// it returns how long to wait, negative for as long as nothing else happens.
func (l *lane) takeBatch(limit int, now time.Time) (batch []*entry, withHeartbeat bool, wait time.Duration) {
	limit = min(limit, l.size.limit)
	l.plan.full = limit
	l.plan.held = l.heldUntil(now)
	if wait := l.pause.untilCall(now); wait != 0 {
		return nil, false, wait
	}

	if wait := l.plan.held.Sub(now); wait > 0 && l.hasDue(now) {
		return nil, false, wait
	}

	withHeartbeat = l.schedule.isDue(now)
	if !withHeartbeat || !l.travelsAlone() {
		batch = l.takeEvents(limit, now)
		if withHeartbeat || len(batch) > 0 {
			batch = l.addResends(batch, limit, now)
		}
		withHeartbeat = withHeartbeat && l.mayFollow(batch)
	}

	if len(batch) == 0 && !withHeartbeat {
		return nil, false, soonest(l.schedule.untilHeartbeat(now), l.untilSent(now))
	}

	l.inFlight++
	l.pause.beginCall()
	l.gather.noteCall(batch, len(l.ready), l.opts.Gather, l.plan.held, now)
	return batch, withHeartbeat, 0
}

// heldUntil returns the time until which due events wait for further events. A heartbeat that is
// due, a batch that is full, and a manager that is back do not wait.
func (l *lane) heldUntil(now time.Time) (end time.Time) {
	isUrgent := l.pause.isOn() || l.schedule.isDue(now) || l.fillsBatch()
	if isUrgent {
		return end
	}
	return l.gather.windowEnd(l.opts.Gather)
}

// untilSent returns the time until the first entry is due and not held. It is negative if no entry
// will be due. If the last wait has gathered many events, more are expected, and they need not wake
// the dispatcher.
func (l *lane) untilSent(now time.Time) time.Duration {
	wait := l.untilDue(now)
	held := l.plan.held.Sub(now)
	isExpected := wait >= 0 || l.gather.hasMany()
	if isExpected && held > 0 {
		return max(wait, held)
	}
	return wait
}

// takeEvents alternates: one call takes a refused event that must travel alone, the next call takes
// the other events. So neither holds up the other.
func (l *lane) takeEvents(limit int, now time.Time) []*entry {
	l.tookAlone = !l.tookAlone && l.refused.isAlone(now)
	if l.tookAlone {
		return l.refused.takeDue(nil, limit, now)
	}

	batch := l.ready.takeDue(nil, limit, now)
	if isAlone(batch) {
		return batch
	}
	return l.refused.takeDue(batch, min(limit, len(batch)+maxRefused), now)
}

// travelsAlone reports whether a heartbeat that is due travels before the events, because batches
// are small. It names numbers that have arrived.
func (l *lane) travelsAlone() bool {
	switch {
	case !l.size.isNarrow():
		return false
	case l.size.large:
		return l.arrived() >= l.schedule.named && !l.mayBeSeen()
	default: // Numbers that wait may have been seen, if their answer was lost.
		return l.arrived() == l.sequence && l.sequence > 0
	}
}

// mayFollow reports whether a heartbeat may follow the events that were taken. A small batch may
// leave numbers behind that a heartbeat names, or have no room.
func (l *lane) mayFollow(batch []*entry) bool {
	switch {
	case isAlone(batch):
		return false
	case !l.size.isNarrow():
		return true
	default:
		return l.arrived() == l.sequence && len(batch) < l.size.limit
	}
}
