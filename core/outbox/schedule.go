package outbox

import (
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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

// schedule is when the heartbeats of a lane are due. Heartbeats travel behind the events with the
// numbers that they name, are not counted, and never pile up.
//
// The dispatcher and the goroutines of calls use it under the lock of the lane, except for the
// fields that only the dispatcher uses.
type schedule struct {
	next    time.Time // zero: no heartbeats.
	number  uint64
	leaving leave
	extra   time.Time // when the last heartbeat before its time was due.
	sent    time.Time // when the last heartbeat was made.
	// named is the highest number that a receiver may have from a heartbeat. A lower number in the
	// next heartbeat would look like a restart.
	named uint64
	// disconnects is the number that was noticed.
	disconnects int64

	reported reported  // by the last heartbeat. The dispatcher writes it without the lock.
	checked  time.Time // when reported was compared last, by the dispatcher only.
}

// leave is how far a lane is with the last heartbeat of its process.
type leave uint8

const (
	stays  leave = iota
	leaves       // the next heartbeat is the last.
	left         // the last heartbeat was made.
)

func (s *schedule) isDue(now time.Time) bool { return !s.next.IsZero() && !s.next.After(now) }

// untilHeartbeat returns how long until a heartbeat is due, or may become due, negative when none
// is to come. One that is due waits for events.
func (s *schedule) untilHeartbeat(now time.Time) time.Duration {
	if s.next.IsZero() || s.isDue(now) {
		return -1
	}
	return min(s.next.Sub(now), checkEvery)
}

// hastenHeartbeat makes a heartbeat due before its time, at most one in extraEvery.
func (s *schedule) hastenHeartbeat(now time.Time) {
	at := latest(now, s.extra.Add(extraEvery))
	if s.leaving == stays && at.Before(s.next) {
		s.next = at
		s.extra = at
	}
}

// scheduleReconnect makes a heartbeat due on a new connection when one has ended. With a server
// that closes each, heartbeats are as frequent as by default.
func (s *schedule) scheduleReconnect(due time.Time) {
	due = latest(due, s.sent.Add(defaultHeartbeatInterval))
	if s.leaving == stays && due.Before(s.next) {
		s.next = due
	}
}

// noteReported keeps a summary of a heartbeat, to compare it with the state of later moments.
func (s *schedule) noteReported(heartbeat *core.Heartbeat) {
	lost := losses(heartbeat, heartbeat.Dropped)
	s.reported = reported{
		state:  stateOf(heartbeat),
		losses: lost,
		losing: lost > s.reported.losses,
		oldest: heartbeat.OldestPending,
	}
}

// reported is a summary of the last heartbeat.
type reported struct {
	state  state
	losses int64
	losing bool          // there were more losses than in the heartbeat before.
	oldest time.Duration // age of a pending event.
}

// isOutdated reports whether the last heartbeat is not true any more. Losses that go on are no
// news.
func (r *reported) isOutdated(present state, losses int64) bool {
	hasNewLosses := !r.losing && losses > r.losses
	return present != r.state || hasNewLosses
}

// state is the part of a heartbeat that decides on freshness. Of an error, presence matters.
type state struct {
	canary                             core.CanaryState
	configHash, material               string
	isProved, brokenKeys, brokenConfig bool
	changedWebhook                     bool
}

func stateOf(heartbeat *core.Heartbeat) state {
	return state{
		canary:         heartbeat.Canary,
		configHash:     heartbeat.ConfigHash,
		material:       heartbeat.CertificateFingerprint + strings.Join(heartbeat.CAFingerprints, ""),
		isProved:       !heartbeat.LastReview.IsZero(),
		brokenKeys:     heartbeat.KeyMaterialError != "",
		brokenConfig:   heartbeat.ConfigError != "",
		changedWebhook: heartbeat.WebhookError != "",
	}
}

// losses are the failures of the webhook, and the dropped events of a lane.
func losses(heartbeat *core.Heartbeat, dropped map[core.Reason]int64) int64 {
	n := heartbeat.WebhookFailures
	for _, events := range dropped {
		n += events
	}
	return n
}
