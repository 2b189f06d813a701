package outbox

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse is when the heartbeats of a lane are due. They travel behind the events with the numbers
// that they name, are not counted, and never pile up.
type pulse struct {
	next     time.Time // zero: no heartbeats
	number   uint64
	leaving  leave
	extra    time.Time // when the last heartbeat before its time was due.
	reported reported
	checked  time.Time // when reported was compared last, by the dispatcher only
	sent     time.Time // when the last heartbeat was made
	// named is the highest number that a receiver may have from a heartbeat. A lower number in the
	// next heartbeat would look like a restart.
	named uint64
	// disconnects is the number that was noticed.
	disconnects int64
}

const (
	// checkEvery is the time between two comparisons of the last heartbeat with the present state.
	checkEvery = time.Second
	// extraEvery is the least time between two heartbeats before their time.
	extraEvery = 5 * time.Second
	// reconnectWithin spreads the heartbeats after the end of a connection, because the connections
	// of many agents end together.
	reconnectWithin = 20 * time.Second
	// oldBacklog is the age of a pending event above which its delivery is news. It is half of the
	// default limit of a fleet (PendingTooLong).
	oldBacklog = 30 * time.Second
)

type reported struct {
	state  state
	losses int64
	losing bool          // there were more losses than in the heartbeat before
	oldest time.Duration // age of a pending event
}

// state is the part of a heartbeat that decides on freshness. Of an error, presence matters.
type state struct {
	canary                             core.CanaryState
	configHash, material               string
	isProved, brokenKeys, brokenConfig bool
	changedWebhook                     bool
}

func stateOf(beat *core.Heartbeat) state {
	return state{
		canary: beat.Canary, configHash: beat.ConfigHash,
		material:   beat.CertificateFingerprint + strings.Join(beat.CAFingerprints, ""),
		isProved:   !beat.LastReview.IsZero(),
		brokenKeys: beat.KeyMaterialError != "", brokenConfig: beat.ConfigError != "",
		changedWebhook: beat.WebhookError != "",
	}
}

func losses(beat *core.Heartbeat, dropped map[core.Reason]int64) int64 {
	n := beat.WebhookFailures
	for _, events := range dropped {
		n += events
	}
	return n
}

func (p *pulse) note(beat *core.Heartbeat) {
	now := losses(beat, beat.Dropped)
	p.reported = reported{stateOf(beat), now, now > p.reported.losses, beat.OldestPending}
}

// hasten makes a heartbeat due before its time, at most one in extraEvery.
func (p *pulse) hasten(now time.Time) {
	at := latest(now, p.extra.Add(extraEvery))
	if p.leaving == stays && at.Before(p.next) {
		p.next, p.extra = at, at
	}
}

// reconnect makes a heartbeat due on a new connection when one has ended. With a server that
// closes each, heartbeats are as frequent as by default.
func (p *pulse) reconnect(due time.Time) {
	if due = latest(due, p.sent.Add(defaultHeartbeatInterval)); p.leaving == stays && due.Before(p.next) {
		p.next = due
	}
}

// hastenIfChanged makes a heartbeat due when the last one is not true any more. Losses that go on
// are no news. An event that grows old is none either, because no heartbeat arrives before it.
func (l *lane) hastenIfChanged() {
	now := time.Now()
	if l.pulse.number == 0 || now.Sub(l.pulse.checked) < checkEvery {
		return
	}
	l.pulse.checked = now
	beat := l.opts.Heartbeat(l.manager)
	disconnects := l.opts.Disconnects()
	l.mu.Lock()
	defer l.mu.Unlock()
	if disconnects != l.pulse.disconnects {
		l.pulse.disconnects = disconnects
		l.pulse.reconnect(now.Add(l.opts.jitter(reconnectWithin)))
	}
	last := l.pulse.reported
	loses := !last.losing && losses(&beat, l.counts.Dropped) > last.losses
	delivered := last.oldest > oldBacklog && l.oldest(now) <= oldBacklog
	if stateOf(&beat) != last.state || loses || delivered {
		l.pulse.hasten(now)
	}
}

type leave uint8

const (
	stays leave = iota
	leaves
	left
)

func (p *pulse) due(now time.Time) bool { return !p.next.IsZero() && !p.next.After(now) }

// wait returns how long until a heartbeat is due, or may become due, negative when none is to come.
// One that is due waits for events.
func (p *pulse) wait(now time.Time) time.Duration {
	if p.next.IsZero() || p.due(now) {
		return -1
	}
	return min(p.next.Sub(now), checkEvery)
}

// heartbeat makes the next heartbeat, and schedules the one after. The resends that the last one
// leaves to the control plane count as pending.
func (l *lane) heartbeat(now time.Time) *core.Heartbeat {
	interval := l.opts.HeartbeatInterval
	l.pulse.number++
	l.pulse.sent = now
	l.pulse.next = now.Add(interval - l.opts.jitter(interval/10)) // Up to a tenth early.
	beat := &core.Heartbeat{
		ID: l.id("heartbeat-", l.pulse.number), Time: now, Number: l.pulse.number, Interval: interval,
		Sequence: l.sequence, Pending: l.counts.Pending, OldestPending: l.oldest(now),
		Dropped: maps.Clone(l.counts.Dropped),
	}
	if l.size.large {
		beat.Sequence = l.arrived() // It travels alone, before the numbers that wait.
	}
	l.pulse.named = beat.Sequence
	if l.pulse.leaving == leaves {
		beat.Leaving, l.pulse.leaving = true, left
		beat.Pending += int64(len(l.resends))
	}
	return beat
}

// fill adds the fields that the outbox does not know to the heartbeat of a batch, if it has one.
// The caller is the dispatcher, without the lock.
func (l *lane) fill(beat *core.Heartbeat) {
	if beat == nil {
		return
	}
	own := *beat
	*beat = l.opts.Heartbeat(l.manager)
	beat.ID, beat.Time, beat.Number, beat.Interval = own.ID, own.Time, own.Number, own.Interval
	beat.Sequence, beat.Leaving, beat.Dropped = own.Sequence, own.Leaving, own.Dropped
	beat.Pending, beat.OldestPending = own.Pending, own.OldestPending
	if !beat.LastReview.IsZero() {
		// The age counts, and a wall clock that was set back in between does not change it.
		beat.LastReview = own.Time.Add(-own.Time.Sub(beat.LastReview))
	}
	l.pulse.note(beat)
}

// concludeHeartbeat sends a heartbeat again that did not arrive. One that was refused waits for its
// interval.
func (l *lane) concludeHeartbeat(c *call, whole, refusal error, now time.Time) {
	err := cmp.Or(whole, refusal)
	tooLarge := errors.Is(whole, core.ErrTooLarge)
	if tooLarge {
		l.pulse.named = c.named // Nothing of the batch was seen.
	}
	switch {
	case l.pulse.leaving == left:
		l.pulse.next = time.Time{}
	case err == nil:
	case tooLarge && len(c.entries) > 0:
		l.pulse.next = now // Alone, it may fit.
	case errors.Is(refusal, core.ErrNotSent), whole != nil && !core.IsPermanent(whole):
		l.pulse.next = now
	default:
		l.warn(now, "heartbeat refused", core.ReasonOf(err), slog.Any("error", err))
	}
}

// leave schedules the last heartbeat when nothing is pending, and reports whether it was sent or
// none is to be sent. The events that come after it are refused. A manager that cannot be reached
// gets none.
func (l *lane) leave(now time.Time) (done bool) {
	switch {
	case l.counts.Pending > 0:
		return false
	case l.pulse.next.IsZero(), l.failures > 0 && l.pulse.leaving == stays:
		return true
	case l.pulse.leaving == stays:
		l.pulse.leaving, l.pulse.next = leaves, now
		signal(l.wake)
	}
	return false
}
