package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Each bound is inclusive or exclusive on purpose. The clock of a bubble stops exactly at it, and a
// nanosecond later.
func TestStatesChangeExactlyAtTheirBounds(t *testing.T) {
	const minute, week = time.Minute, 7 * 24 * time.Hour

	off := func(number uint64) message {
		return with(beat("e", number, 0), func(b *core.Heartbeat) { b.Canary = core.CanaryOff })
	}
	pending := func(number uint64, oldest time.Duration) message {
		return with(beat("e", number, 0), func(b *core.Heartbeat) { b.OldestPending = oldest })
	}

	eachPlay(t, map[string]func(r *rig){
		"a proof lasts for ten minutes": func(r *rig) {
			r.observe(beat("e", 1, 0))
			for n := range uint64(20) {
				time.Sleep(interval)
				r.observe(off(n + 2))
			}

			r.wantState(fleet.Fresh, "")
			time.Sleep(time.Nanosecond)
			r.wantState(fleet.Unproved, "")
		},
		"an event may be pending for a minute": func(r *rig) {
			r.observe(pending(1, minute))
			r.wantState(fleet.Fresh, "")
			r.observe(pending(2, minute+1))
			r.wantState(fleet.Degraded, string(fleet.ReasonPendingTooLong))
		},
		"a certificate may have a day left": func(r *rig) {
			now := time.Now()
			r.observe(showing(beat("e", 1, 0), now.Add(-week), now.Add(24*time.Hour)))
			r.wantState(fleet.Fresh, "")
			time.Sleep(time.Nanosecond)
			r.wantState(fleet.Degraded, string(fleet.ReasonCertificateExpiring))
		},
		"a heartbeat without an interval counts for a minute": func(r *rig) {
			r.observe(with(beat("e", 1, 0), func(b *core.Heartbeat) { b.Interval = 0 }))
			time.Sleep(minute)
			r.wantState(fleet.Fresh, "")
			time.Sleep(time.Nanosecond)
			r.wantState(fleet.Stale, "")
		},
		"a refusal counts for 100 s": func(r *rig) {
			r.observe(beat("e", 1, 0))
			r.fleet.Receiver().Refuse(prod, kyma, "san_mismatch")
			time.Sleep(100 * time.Second)
			r.wantState(fleet.Stale, string(fleet.ReasonRefused))

			time.Sleep(time.Nanosecond)
			r.wantState(fleet.Stale, "")
		},
		"requests of a forgotten runtime are left out for a minute": func(r *rig) {
			r.observe(beat("e", 1, 0))
			r.fleet.Forget(prod)
			time.Sleep(minute - 1)
			r.observe(beat("e", 2, 0))
			r.wantState(fleet.Unknown, "")

			time.Sleep(time.Nanosecond)
			r.observe(beat("e", 3, 0))
			r.wantState(fleet.Fresh, "")
		},
	})
}

// A heartbeat whose number is not higher was overtaken, or sent twice. After a minute its sequence
// has begun again.
func TestAHeartbeatWithTheSameNumber(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  uint64
	}{
		"sent twice":          {0, 5},
		"under way for long":  {time.Minute - 1, 5},
		"of another sequence": {time.Minute, 9},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				r.observe(beat("e", 2, 5))
				time.Sleep(tt.after)
				r.observe(beat("e", 2, 9))

				replicas := r.fleet.Get(prod, kyma).Replicas
				if len(replicas) != 1 || replicas[0].Sequence != tt.want {
					t.Errorf("replicas %+v, want one with sequence %d", replicas, tt.want)
				}
			})
		})
	}
}

// An operator that polls all runtimes alike is no mistake.
func TestEqualPollingIntervals(t *testing.T) {
	equal := fleet.Options{PollFresh: time.Hour, PollUnproved: time.Hour, PollOtherwise: time.Hour}
	if _, err := fleet.New(equal); err != nil {
		t.Errorf("three equal intervals: %v, want no error", err)
	}

	equal.PollOtherwise++
	if _, err := fleet.New(equal); err == nil {
		t.Error("PollOtherwise is longer than PollUnproved: want an error")
	}
}

// A replica may send events before its first heartbeat, which alone reports its CAs. The replica of
// another manager may trust a CA already.
func TestAReplicaWithoutAHeartbeatTrustsNoCA(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		send(r.fleet, prod, kyma, trusting("e", 1, "new"))
		if missing := r.fleet.WithoutCA("new"); len(missing) != 0 {
			t.Errorf("runtimes without the CA are %q, want none", missing)
		}

		send(r.fleet, prod, "other", changed("f", 1))
		if missing := r.fleet.WithoutCA("new"); len(missing) != 1 || missing[0] != prod {
			t.Errorf("runtimes without the CA are %q, want %q", missing, prod)
		}
	})
}
