package outbox

import (
	"errors"
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse is when the heartbeats of a lane are due. They travel behind the events whose numbers they name,
// are not counted, and never pile up.
type pulse struct {
	next    time.Time // zero: no heartbeats
	number  uint64
	leaving leave
	logged  logged // refused heartbeats
	dropped logged // refused events
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

// wait returns how long until a heartbeat is due, negative when there are none.
func (p *pulse) wait(now time.Time) time.Duration {
	if p.next.IsZero() {
		return -1
	}

	return max(p.next.Sub(now), 0)
}

// heartbeat makes the next heartbeat of a lane, and schedules the one after.
func (o *Outbox) heartbeat(l *lane, now time.Time) *core.Heartbeat {
	var beat core.Heartbeat
	if o.opts.Heartbeat != nil {
		beat = o.opts.Heartbeat(l.manager)
	}

	interval := o.opts.HeartbeatInterval
	l.pulse.number++
	l.pulse.next = now.Add(interval - o.jitter(interval/10)) //nolint:mnd // Up to a tenth early.

	beat.ID, beat.Time = o.id(l, "heartbeat-", l.pulse.number), now
	beat.Number = l.pulse.number
	beat.Interval = interval
	beat.Sequence = l.sequence
	beat.Pending = l.counts.Pending
	beat.OldestPending = l.oldest(now)
	beat.Dropped = maps.Clone(l.counts.Dropped)

	if l.pulse.leaving == leaves {
		beat.Leaving, l.pulse.leaving = true, leaveSent
	}

	return &beat
}

// concludeHeartbeat sends a heartbeat again that did not arrive. One that was refused waits for its
// interval.
func (o *Outbox) concludeHeartbeat(l *lane, err error, now time.Time) {
	switch {
	case l.pulse.leaving == leaveSent:
		l.pulse.leaving, l.pulse.next = left, time.Time{}
	case err == nil:
		l.pulse.logged = logged{}
	case errors.Is(err, core.ErrNotSent), l.failures > 0 && !core.IsPermanent(err):
		l.pulse.next = now
	default:
		o.noteHeartbeat(l, err, now)
	}
}

// announceLeave closes the outbox if nothing is pending, and schedules the last heartbeats. It reports
// whether nothing is pending. A lane with resends gets no last heartbeat: the resync that follows on the
// silence of this process stands in for them.
func (o *Outbox) announceLeave() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.pending() > 0 {
		return false
	}

	o.stopped = true

	for _, l := range o.lanes {
		switch {
		case l.pulse.next.IsZero(), l.failures > 0, len(l.resends) > 0:
			l.pulse.leaving, l.pulse.next = left, time.Time{}
		case l.pulse.leaving == stays:
			l.pulse.leaving, l.pulse.next = leaves, time.Now()
			signal(l.wake)
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
