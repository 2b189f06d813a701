package fleet_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// quiet is the heartbeat of an agent without a canary.
func quiet(number uint64, change func(*core.Heartbeat)) message {
	return with(beat("e", number, 1), func(b *core.Heartbeat) {
		b.Canary, b.Time = core.CanaryOff, time.Now()
		change(b)
	})
}

// The API server may reject the webhook certificate of an agent. That agent sends heartbeats like any other.
func TestHeartbeatsAloneDoNotProveFreshness(t *testing.T) {
	opts := fleet.Options{PollFresh: time.Hour, PollUnproved: 10 * time.Minute, PollOtherwise: time.Minute}
	inBubble(t, opts, func(r *rig) {
		r.observe(resync("e", 1), quiet(1, func(*core.Heartbeat) {}))
		r.wantState(fleet.Unproved, "")
		if wait := r.fleet.RequeueAfter(prod); wait != 10*time.Minute {
			t.Errorf("RequeueAfter of an unproved runtime is %v, want PollUnproved", wait)
		}
	})
}

func TestReviewProvesFreshnessForAWhile(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		reviewed := time.Now()
		beats := func(number uint64) {
			r.observe(quiet(number, func(b *core.Heartbeat) { b.LastReview = reviewed }))
		}
		r.observe(resync("e", 1))
		beats(1)
		r.wantState(fleet.Fresh, "")
		for n := range uint64(19) {
			time.Sleep(interval)
			beats(n + 2)
			r.wantState(fleet.Fresh, "")
		}
		time.Sleep(interval)
		time.Sleep(time.Second)
		beats(21)
		r.wantState(fleet.Unproved, "")
	})
}

// The first requests after a silence may carry events only. The canary may be lost since the last heartbeat.
func TestSilenceEndsProofs(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		canary := func(number uint64, state core.CanaryState) {
			r.observe(quiet(number, func(b *core.Heartbeat) { b.Canary = state }))
		}
		r.observe(resync("e", 1))
		canary(1, core.CanaryAlive)
		r.wantState(fleet.Fresh, "")
		time.Sleep(5 * time.Minute)
		r.wantState(fleet.Stale, "")
		r.observe(resync("e", 2))
		r.wantState(fleet.Unproved, "")
		canary(2, core.CanaryLost)
		r.wantState(fleet.Degraded, reasons.CanaryLost)
	})
}

// The clock of a runtime may be wrong by years: only differences of its times count.
func TestProofDoesNotCompareClocks(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		wrong := time.Now().Add(-20 * 365 * 24 * time.Hour)
		r.observe(resync("e", 1), quiet(1, func(b *core.Heartbeat) { b.Time, b.LastReview = wrong, wrong.Add(-time.Second) }))
		r.wantState(fleet.Fresh, "")
		r.observe(quiet(2, func(b *core.Heartbeat) { b.Time, b.LastReview = wrong, wrong.Add(time.Hour) }))
		r.wantState(fleet.Fresh, "")
	})
}

func TestFailedHandshakesWithoutAProofAreDegraded(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), quiet(1, func(*core.Heartbeat) {}))
		time.Sleep(interval)
		r.observe(quiet(2, func(b *core.Heartbeat) { b.WebhookFailures = 3 }))
		r.wantState(fleet.Degraded, reasons.WebhookUnreachable)
		time.Sleep(interval)
		r.observe(quiet(3, func(b *core.Heartbeat) { b.WebhookFailures = 6 }))
		r.wantState(fleet.Degraded, reasons.WebhookUnreachable)
	})
}

// A stranger can make handshakes fail. While the API server comes through, that is no reason.
func TestFailedHandshakesBesideAProofAreNot(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		time.Sleep(interval)
		r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) { b.WebhookFailures = 3 }))
		r.wantState(fleet.Fresh, "")
	})
}

func TestResyncForOneOwnerDoesNotStandForTheRuntime(t *testing.T) {
	inBubble(t, fleet.Options{ResyncJitter: 10 * time.Second}, func(r *rig) {
		r.observe(changed("e", 5)) // A new epoch.
		owned := resync("e", 6)
		owned.Owner = types.NamespacedName{Namespace: "kcp-system", Name: "one"}
		r.observe(owned)
		time.Sleep(time.Minute)
		r.wantCauses("new_epoch")
	})
}

// A leaf of one day, as short-lived ones are, is not about to expire for all of its life.
func TestExpiryIsRelativeToTheLifetime(t *testing.T) {
	for name, test := range map[string]struct {
		life, left time.Duration
		expiring   bool
	}{
		"a new leaf of a day":       {24 * time.Hour, 24 * time.Hour, false},
		"a third of a day is left":  {24 * time.Hour, 8 * time.Hour, false},
		"a tenth of a day is left":  {24 * time.Hour, 2 * time.Hour, true},
		"two days of ninety left":   {90 * 24 * time.Hour, 48 * time.Hour, false},
		"half a day of ninety left": {90 * 24 * time.Hour, 12 * time.Hour, true},
		"what the runtime claims":   {0, 0, false},
		"expired":                   {24 * time.Hour, -time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				m := with(beat("e", 1, 1), func(b *core.Heartbeat) { b.CertificateExpiry = time.Now().Add(time.Minute) })
				if test.life > 0 {
					m = showing(m, time.Now().Add(test.left-test.life), time.Now().Add(test.left))
				}
				r.observe(resync("e", 1), m)
				if test.expiring {
					r.wantState(fleet.Degraded, reasons.CertificateExpiring)
				} else {
					r.wantState(fleet.Fresh, "")
				}
			})
		})
	}
}

// A filter for warnings finds the runtimes that need an action.
func TestLevelOfChanges(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, fleet.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(r *rig) {
		lost := with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Canary = core.CanaryLost })
		alive := with(beat("e", 3, 1), func(b *core.Heartbeat) { b.Canary = core.CanaryAlive })
		r.observe(resync("e", 1), beat("e", 1, 1), lost, alive)
		time.Sleep(time.Hour)
	})
	for _, want := range []string{
		"INFO.* from=unknown to=fresh", "WARN.* to=degraded reason=canary_lost", "INFO.* from=degraded to=fresh",
		"WARN.* to=stale",
	} {
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("no line matches %q:\n%s", want, &log)
		}
	}
}

func TestFlappingRuntimeDoesNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, fleet.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		for n := range uint64(4000) {
			time.Sleep(5 * time.Millisecond)
			r.observe(with(beat("e", n+2, 1), func(b *core.Heartbeat) {
				if n%2 == 0 {
					b.Canary = core.CanaryLost
				}
			}))
		}
		if len(r.transitions) < 4000 {
			t.Errorf("%d changes reached the observers, want each of 4,001", len(r.transitions))
		}
	})
	if lines := strings.Count(log.String(), "freshness"); lines < 40 || lines > 60 {
		t.Errorf("%d lines in 20 s for one runtime, want 20 in each window", lines)
	}
	if !regexp.MustCompile(`suppressed=[1-9]`).MatchString(log.String()) {
		t.Error("no line names the number of suppressed ones")
	}
}
