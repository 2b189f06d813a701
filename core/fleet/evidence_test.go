package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// An agent that starts during an outage may drop events before its first heartbeat arrives.
func TestDropsBeforeTheFirstHeartbeatAreSeen(t *testing.T) {
	dropped := func(m message) message {
		return with(m, func(b *core.Heartbeat) { b.Dropped = map[string]int64{"overflow": 3} })
	}
	for name, test := range map[string]struct {
		messages []message
		want     fleet.State
		reason   string
	}{
		"the first heartbeat":               {[]message{dropped(beat("e", 1, 0))}, fleet.Degraded, reasons.Dropping},
		"the first event, a late heartbeat": {[]message{resync("e", 1), dropped(beat("e", 9, 1))}, fleet.Degraded, reasons.Dropping},
		// A new leader does not know when an old agent dropped them.
		"an old epoch": {[]message{resync("e", 70), dropped(beat("e", 900, 70))}, fleet.Fresh, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				r.observe(test.messages...)
				r.wantState(test.want, test.reason)
			})
		})
	}
}

// The foreign caBundle is the cause, the lost canary its effect.
func TestFailedHandshakesExplainALostCanary(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		time.Sleep(interval)
		r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Canary, b.WebhookFailures = core.CanaryLost, 2 }))
		r.wantState(fleet.Degraded, reasons.WebhookUnreachable)
	})
}

// A review after the last heartbeat proves that the API server reaches the webhook again.
func TestAReviewEndsWebhookUnreachable(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		failures := func(n int64, review time.Duration) func(*core.Heartbeat) {
			return func(b *core.Heartbeat) {
				b.Canary, b.WebhookFailures, b.Time = core.CanaryOff, n, time.Now()
				if review > 0 {
					b.LastReview = b.Time.Add(-review)
				}
			}
		}
		r.observe(resync("e", 1), with(beat("e", 1, 1), failures(0, time.Second)))
		time.Sleep(interval)
		r.observe(with(beat("e", 2, 1), failures(4, interval+time.Second)))
		r.wantState(fleet.Degraded, reasons.WebhookUnreachable)
		time.Sleep(interval)
		r.observe(with(beat("e", 3, 1), failures(4, time.Second)))
		r.wantState(fleet.Fresh, "")
	})
}
