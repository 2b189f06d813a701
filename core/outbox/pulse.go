package outbox

import (
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse is when a lane's heartbeats are due. They travel in line with the events, so that the numbers they tell of are
// those that the receiver has seen. They are not events: they are not counted, and never pile up.
type pulse struct {
	next    time.Time // zero: no heartbeats
	number  uint64
	leaving leave
}

// leave is how far a lane is with its last heartbeat.
type leave uint8

const (
	stays leave = iota
	leaves
	leaveSent
	left
)

func (p *pulse) due(now time.Time) bool { return !p.next.IsZero() && !p.next.After(now) }

// wait returns how long until a heartbeat is due, negative when there are none.
func (p *pulse) wait(now time.Time) time.Duration {
	if p.next.IsZero() {
		return -1
	}

	return max(p.next.Sub(now), 0)
}

// heartbeat makes the next heartbeat of a lane, and plans the one after.
func (o *Outbox) heartbeat(l *lane, now time.Time) core.WatchEvent {
	var beat core.Heartbeat
	if o.opts.Heartbeat != nil {
		beat = o.opts.Heartbeat(l.manager)
	}

	interval := o.opts.HeartbeatInterval
	l.pulse.number++
	l.pulse.next = now.Add(interval - time.Duration(o.opts.Random()*float64(interval)/10)) //nolint:mnd // Up to a tenth early.

	beat.Number = l.pulse.number
	beat.Interval = interval
	beat.Sequence = l.sequence
	beat.Pending = l.counts.Pending
	beat.OldestPending = l.oldest(now)
	beat.Dropped = maps.Clone(l.counts.Dropped)

	if l.pulse.leaving == leaves {
		beat.Leaving, l.pulse.leaving = true, leaveSent
	}

	return core.WatchEvent{
		Kind:      core.KindHeartbeat,
		ID:        o.id(l, "heartbeat-", beat.Number),
		Epoch:     o.opts.Epoch,
		Time:      now,
		Heartbeat: &beat,
	}
}

// oldest returns the age of the oldest event. Its cost grows with what is pending.
func (l *lane) oldest(now time.Time) (age time.Duration) {
	for _, e := range l.entries {
		if !e.rests {
			age = max(age, now.Sub(e.accepted))
		}
	}

	return age
}

// beaten takes note of what became of a heartbeat.
func (l *lane) beaten(lost bool, now time.Time) {
	switch {
	case l.pulse.leaving == leaveSent:
		l.pulse.leaving, l.pulse.next = left, time.Time{}
	case lost:
		l.pulse.next = now
	}
}

// takeLeave closes the outbox if nothing is pending, and plans the last heartbeats. It reports whether they are on their way or
// need not be. A manager for which second looks wait gets none: they are not waited for, and the resync that follows on the silence of this
// process stands in for them.
func (o *Outbox) takeLeave() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.pendingLocked() > 0 {
		return false
	}

	o.stopped = true

	for _, l := range o.lanes {
		switch {
		case l.pulse.next.IsZero(), l.failures > 0, l.resting():
			l.pulse.leaving, l.pulse.next = left, time.Time{}
		case l.pulse.leaving == stays:
			l.pulse.leaving, l.pulse.next = leaves, time.Now()
			l.stir()
		}
	}

	return true
}

// hasLeft reports whether every last heartbeat was sent.
func (o *Outbox) hasLeft() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	for _, l := range o.lanes {
		if l.pulse.leaving != left {
			return false
		}
	}

	return true
}
