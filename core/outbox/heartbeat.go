package outbox

import (
	"cmp"
	"errors"
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse is when the heartbeats of a lane are due. They travel behind the events with the numbers
// that they name, are not counted, and never pile up.
type pulse struct {
	next    time.Time // zero: no heartbeats
	number  uint64
	leaving leave
	logged  line // why heartbeats are refused
}

// leave is the progress of a lane towards its last heartbeat.
type leave uint8

const (
	stays leave = iota
	leaves
	leaveSent
	left
)

func (p *pulse) due(now time.Time) bool { return !p.next.IsZero() && !p.next.After(now) }

// wait returns how long until a heartbeat is due, negative when none is to come. One that is due
// waits for events.
func (p *pulse) wait(now time.Time) time.Duration {
	if p.next.IsZero() || p.due(now) {
		return -1
	}
	return p.next.Sub(now)
}

// heartbeat makes the next heartbeat of a lane, and schedules the one after.
func (o *Outbox) heartbeat(l *lane, now time.Time) *core.Heartbeat {
	interval := o.opts.HeartbeatInterval
	l.pulse.number++
	l.pulse.next = now.Add(interval - o.jitter(interval/10)) // Up to a tenth early.
	beat := &core.Heartbeat{
		ID: l.id("heartbeat-", l.pulse.number), Time: now, Number: l.pulse.number, Interval: interval,
		Sequence: l.sequence, Pending: l.counts.Pending, OldestPending: l.oldest(now),
		Dropped: maps.Clone(l.counts.Dropped),
	}
	if l.pulse.leaving == leaves {
		beat.Leaving, l.pulse.leaving = true, leaveSent
	}
	return beat
}

// fill adds the fields that the outbox does not know. The caller does not hold the lock.
func (o *Outbox) fill(manager core.Manager, beat *core.Heartbeat) {
	if beat == nil || o.opts.Heartbeat == nil {
		return
	}
	own := *beat
	*beat = o.opts.Heartbeat(manager)
	beat.ID, beat.Time, beat.Number, beat.Interval = own.ID, own.Time, own.Number, own.Interval
	beat.Sequence, beat.Leaving, beat.Dropped = own.Sequence, own.Leaving, own.Dropped
	beat.Pending, beat.OldestPending = own.Pending, own.OldestPending
}

// concludeHeartbeat sends a heartbeat again that did not arrive. One that was refused waits for its
// interval.
func (o *Outbox) concludeHeartbeat(l *lane, whole, refusal error, now time.Time) {
	err := cmp.Or(whole, refusal)
	switch {
	case l.pulse.leaving >= leaveSent:
		l.pulse.leaving, l.pulse.next = left, time.Time{}
	case err == nil:
		l.pulse.logged = line{}
	case errors.Is(refusal, core.ErrNotSent), whole != nil && !core.IsPermanent(whole):
		l.pulse.next = now
	default:
		o.noteHeartbeat(l, err, now)
	}
}

// announceLeave closes the outbox if nothing is pending, and schedules the last heartbeats. It
// reports whether nothing is pending. A lane with resends gets no last heartbeat: the resync that
// follows on the silence of this process stands in for them.
func (o *Outbox) announceLeave() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending() > 0 {
		return false
	}
	o.stopped = true
	for _, l := range o.lanes {
		l.announceLeave()
	}
	return true
}

func (l *lane) announceLeave() {
	switch {
	case l.pulse.next.IsZero(), l.failures > 0, len(l.resends) > 0:
		l.pulse.leaving, l.pulse.next = left, time.Time{}
	case l.pulse.leaving == stays:
		l.pulse.leaving, l.pulse.next = leaves, time.Now()
		signal(l.wake)
	}
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
