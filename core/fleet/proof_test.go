package fleet_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// quiet is the heartbeat of an agent without a canary.
func quiet(number uint64, change func(*core.Heartbeat)) message {
	return with(beat("e", number, 1), func(b *core.Heartbeat) {
		b.Canary = core.CanaryOff
		b.Time = time.Now()
		change(b)
	})
}

// probe is the heartbeat of a process that checks the path and leaves.
func probe(epoch string) message { return of("agent", leaving(epoch, 1, 0)) }

// The API server may reject the webhook certificate of an agent. That agent sends heartbeats like
// any other.
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

// TestProofs has what proves that the API server calls an agent, and what does not.
func TestProofs(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		"a review proves freshness for a while": func(r *rig) {
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
		},
		// The first requests after a silence may carry events only. The canary may be lost since
		// the last heartbeat.
		"a silence ends proofs": func(r *rig) {
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
			r.wantState(fleet.Degraded, string(fleet.ReasonCanaryLost))
		},
		// The clock of a runtime may be wrong by years: only differences of its times count.
		"clocks are not compared": func(r *rig) {
			wrong := time.Now().Add(-20 * 365 * 24 * time.Hour)
			r.observe(resync("e", 1), quiet(1, func(b *core.Heartbeat) {
				b.Time = wrong
				b.LastReview = wrong.Add(-time.Second)
			}))
			r.wantState(fleet.Fresh, "")

			r.observe(quiet(2, func(b *core.Heartbeat) {
				b.Time = wrong
				b.LastReview = wrong.Add(time.Hour)
			}))
			r.wantState(fleet.Fresh, "")
		},
		"failed handshakes without a proof": func(r *rig) {
			r.observe(resync("e", 1), quiet(1, func(*core.Heartbeat) {}))
			time.Sleep(interval)
			r.observe(quiet(2, func(b *core.Heartbeat) { b.WebhookFailures = 3 }))
			r.wantState(fleet.Degraded, string(fleet.ReasonWebhookUnreachable))

			time.Sleep(interval)
			r.observe(quiet(3, func(b *core.Heartbeat) { b.WebhookFailures = 6 }))
			r.wantState(fleet.Degraded, string(fleet.ReasonWebhookUnreachable))
		},
		// A stranger can make handshakes fail. While the API server comes through, that is no
		// reason.
		"failed handshakes beside a proof": func(r *rig) {
			r.observe(started("e")...)
			time.Sleep(interval)
			r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) { b.WebhookFailures = 3 }))
			r.wantState(fleet.Fresh, "")
		},
		// The foreign caBundle is the cause, the lost canary its effect.
		"failed handshakes explain a lost canary": func(r *rig) {
			r.observe(started("e")...)
			time.Sleep(interval)
			r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) {
				b.Canary = core.CanaryLost
				b.WebhookFailures = 2
			}))
			r.wantState(fleet.Degraded, string(fleet.ReasonWebhookUnreachable))
		},
		// A review after the last heartbeat proves that the API server reaches the webhook again.
		"a review ends webhook_unreachable": func(r *rig) {
			failures := func(n int64, review time.Duration) func(*core.Heartbeat) {
				return func(b *core.Heartbeat) {
					b.Canary = core.CanaryOff
					b.WebhookFailures = n
					b.Time = time.Now()
					if review > 0 {
						b.LastReview = b.Time.Add(-review)
					}
				}
			}

			r.observe(resync("e", 1), with(beat("e", 1, 1), failures(0, time.Second)))
			time.Sleep(interval)
			r.observe(with(beat("e", 2, 1), failures(4, interval+time.Second)))
			r.wantState(fleet.Degraded, string(fleet.ReasonWebhookUnreachable))

			time.Sleep(interval)
			r.observe(with(beat("e", 3, 1), failures(4, time.Second)))
			r.wantState(fleet.Fresh, "")
		},
		// A check of the path must neither replace an agent nor look like one.
		"a probe leaves no trace": func(r *rig) {
			r.observe(probe("check-1"))
			r.wantState(fleet.Unknown, "") // Not stale: no agent was there before.
			r.observe(resync("e", 1), of("agent", beat("e", 1, 1)))
			settle()
			r.observe(probe("check-2"))
			r.wantState(fleet.Fresh, "")

			time.Sleep(interval)
			r.observe(of("agent", beat("e", 2, 1)))
			settle()
			r.wantState(fleet.Fresh, "")
			r.wantCauses()
			if replicas := r.fleet.Get(prod, kyma).Replicas; len(replicas) != 1 || replicas[0].Epoch != "e" {
				r.t.Errorf("replicas %v, want the agent alone", replicas)
			}
		},
		// A check in a silent runtime must not hide that the agent is silent.
		"a probe ends no silence": func(r *rig) {
			r.observe(started("e")...)
			time.Sleep(10 * interval)
			seen := r.fleet.Get(prod, kyma).LastSeen
			r.observe(probe("check"))
			settle()
			r.wantState(fleet.Stale, "")
			r.wantCauses()
			if now := r.fleet.Get(prod, kyma).LastSeen; !now.Equal(seen) {
				r.t.Errorf("last seen %v, want %v: the check is no agent", now, seen)
			}
		},
		// The last heartbeat of an agent that sent something is no probe, also when the fleet is
		// new.
		"the last heartbeat of an agent is no probe": func(r *rig) {
			r.observe(leaving("e", 7, 3))
			settle()
			r.wantState(fleet.Stale, string(fleet.ReasonStopped))
			r.wantCauses("new_epoch")
		},
	})
}

// An agent that starts during an outage may drop events before its first heartbeat arrives.
func TestDropsBeforeTheFirstHeartbeatAreSeen(t *testing.T) {
	for name, test := range map[string]struct {
		messages []message
		want     fleet.State
		reason   string
	}{
		"the first heartbeat":               {[]message{dropping("e", 1, 0, 3)}, fleet.Degraded, string(fleet.ReasonDropping)},
		"the first event, a late heartbeat": {[]message{resync("e", 1), dropping("e", 9, 1, 3)}, fleet.Degraded, string(fleet.ReasonDropping)},
		// A new leader does not know when an old agent dropped them.
		"an old epoch": {[]message{resync("e", 70), dropping("e", 900, 70, 3)}, fleet.Fresh, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				r.observe(test.messages...)
				r.wantState(test.want, test.reason)
			})
		})
	}
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
					r.wantState(fleet.Degraded, string(fleet.ReasonCertificateExpiring))
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

// Observers get each change. The log gets few lines, and the number of those that were left out.
func TestFlappingRuntimeDoesNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	inBubble(t, fleet.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(r *rig) {
		r.observe(started("e")...)
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

	if lines := strings.Count(log.String(), "freshness"); lines < 4 || lines > 6 {
		t.Errorf("%d lines in 20 s for one runtime, want two in each window", lines)
	}
	if !regexp.MustCompile(`suppressed=[1-9]`).MatchString(log.String()) {
		t.Error("no line names the number of suppressed ones")
	}
}
