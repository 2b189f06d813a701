package outbox

import "time"

// resendAt reports false if the time had passed when the entry was sent.
func (o Options) resendAt(e *entry, sent time.Time) (at time.Time, again bool) {
	delays := o.Resend
	if e.Resync {
		delays = []time.Duration{o.ResendResync}
	}

	for _, delay := range delays {
		at := e.newest.Add(delay)
		if delay > 0 && at.After(sent) {
			return at, true
		}
	}
	return e.again, e.again.After(sent)
}

// isEarly reports whether an entry was sent before it had settled.
func (o Options) isEarly(e *entry, sent time.Time) bool {
	return e.newest.Add(o.Settle).After(sent) && !e.Resync
}

// isResendDue reports whether an entry that was sent, and not acknowledged, would be sent again now
// if it had been.
func (o Options) isResendDue(e *entry, now time.Time) bool {
	if o.isEarly(e, e.sent) && !o.isEarly(e, now) {
		return true
	}
	at, again := o.resendAt(e, e.sent)
	return again && !at.After(now)
}

// lastResend is when an event that is accepted now is sent for the last time at the latest.
func (o Options) lastResend(now time.Time) time.Time {
	delay := max(o.Settle, 0)
	for _, later := range o.Resend {
		delay = max(delay, later)
	}
	return now.Add(delay)
}

// resendTimes returns when a delivered entry is sent once more, if it is: from a time on with
// another call, and otherwise when it is due. An event that was sent before it had settled is sent
// after that, unless the receiver checks the read itself.
func (l *lane) resendTimes(e *entry, sent time.Time, receiverChecks bool) (from, due time.Time, again bool) {
	if l.opts.isEarly(e, sent) && !receiverChecks {
		settled := e.newest.Add(l.opts.Settle)
		return settled, settled, true
	}

	at, again := l.opts.resendAt(e, sent)
	return at, l.onGrid(at), again
}

// onGrid returns the next step of ResendEvery, so that the resends of one step travel together.
// Without it, each would be due at another moment, and cost another request.
func (l *lane) onGrid(due time.Time) time.Time {
	step := l.opts.ResendEvery
	if step <= 0 {
		return due
	}
	late := due.Sub(l.grid) % step
	if late <= 0 {
		return due
	}
	return due.Add(step - late)
}

// resendDue makes the due resends events. There are none after the last heartbeat.
func (l *lane) resendDue(now time.Time) {
	for l.schedule.leaving == stays && l.resends.isDue(now) {
		l.resendFirst(now)
	}
}

func (l *lane) resendFirst(now time.Time) {
	l.reviveEntry(l.resends[0], now, now)
	l.counts.Accepted++
	l.counts.Pending++
}

// addResends adds resends to a batch that is sent anyway, up to limit elements. They need no call
// of their step then, and come earlier. Batches that are small for their receiver have no room.
func (l *lane) addResends(batch []*entry, limit int, now time.Time) []*entry {
	if isAlone(batch) || l.size.isNarrow() || l.schedule.leaving != stays {
		return batch
	}

	for n := len(batch); n < limit && l.resends.mayTravel(now); n++ {
		l.resendFirst(now)
	}
	return l.ready.takeDue(batch, limit, now)
}
