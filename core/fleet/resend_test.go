package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

const (
	// lateCommit is longer than a replica may wait before its next attempt, and an API server for the slowest webhook.
	lateCommit = 80 * time.Second
	often      = 10 * time.Second // between two heartbeats
)

// TestResends has the resyncs that a fleet sends once more.
func TestResends(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		// A replica may be cut off for a minute before it is killed. Its loss is then found within a second, and a write
		// that it has reviewed just before is committed after the resync.
		"for a lost replica": func(r *rig) {
			r.observe(started("e", "f")...)
			r.keepBeating("e", 2, often, 2*interval+10*time.Second)
			r.wantCauses("replica_lost")
			r.keepBeating("e", 20, often, lateCommit)
			r.wantCauses("replica_lost", "replica_lost")
			r.keepBeating("e", 40, often, 5*time.Minute)
			r.wantCauses("replica_lost", "replica_lost")
			r.wantState(fleet.Fresh, "")
			r.wantReplicas(1)
		},
		// Two replicas are cut off at once, for a time that is too short for silence. The one that was heard first is not
		// lost before the other one comes back: it may still review writes, and be killed afterwards.
		"no replica is lost in an outage": func(r *rig) {
			r.observe(started("e", "f")...)
			time.Sleep(interval - time.Second)
			r.observe(beat("e", 2, 1))
			time.Sleep(2*interval - time.Second)
			r.wantCauses()
			r.observe(beat("e", 3, 1))
			settle()
			r.wantCauses("replica_lost")
			r.wantState(fleet.Fresh, "")
		},
		// A replica that comes back has its events still, and sends them once more itself.
		"a replica that comes back needs one resync only": func(r *rig) {
			r.observe(started("e", "f")...)
			r.keepBeating("e", 2, often, 2*interval+10*time.Second)
			for n := range uint64(5) {
				r.observe(beat("f", n+2, 1))
				r.keepBeating("e", 10*(n+2), often, interval)
			}
			r.wantCauses("replica_lost")
		},
		// An agent that asks for a resync at its start also sends it once more.
		"not for that of an agent": func(r *rig) {
			r.observe(beat("e", 1, 0))
			r.observe(resync("e", 1), beat("e", 2, 1))
			r.keepBeating("e", 3, often, 5*time.Minute)
			r.wantCauses()
		},
		// After a restart of the operator, another replica may be killed before its first request. Nothing shows that it was
		// there. It may have reviewed a write that is committed later. A resync that an agent asks for may be too early.
		"for replicas that a new fleet has not heard": func(r *rig) {
			r.observe(beat("e", 7, 0))
			settle()
			r.observe(resync("e", 1))
			r.keepBeating("e", 8, often, 30*time.Second)
			r.wantCauses("new_epoch")
			r.keepBeating("e", 20, often, lateCommit)
			r.wantCauses("new_epoch", "new_epoch")
			r.keepBeating("e", 40, often, 5*time.Minute)
			r.wantCauses("new_epoch", "new_epoch")
		},
		// A rollout may lose several replicas within two minutes. The last resend stands in for the others.
		"one for several replicas": func(r *rig) {
			r.observe(started("e", "f", "g")...)
			r.keepBeating("e", 2, often, interval)
			r.observe(beat("g", 2, 1))
			r.keepBeating("e", 10, often, interval+10*time.Second)
			r.wantCauses("replica_lost")
			r.keepBeating("e", 20, often, interval)
			r.wantCauses("replica_lost", "replica_lost")
			r.keepBeating("e", 40, often, 5*time.Minute)
			r.wantCauses("replica_lost", "replica_lost", "replica_lost")
		},
		// The first requests of a new epoch may be lost in an outage. The fleet has known the runtime for longer.
		"an epoch that began in an outage is a new one": func(r *rig) {
			r.observe(resync("f", 1), of("pod-1", beat("f", 1, 1)))
			for n := range uint64(3) {
				time.Sleep(interval)
				r.observe(of("pod-1", beat("f", n+2, 1)))
			}
			time.Sleep(interval)
			for n := range uint64(9) {
				r.observe(of("pod-1", beat("e", n+5, 1)))
				time.Sleep(interval)
			}
			r.wantCauses("new_epoch", "new_epoch")
		},
		// The resync of a new epoch stands in for the writes that the former life of the agent has reviewed. The new life may
		// leave in good order before the resend is due. Another replica stays.
		"it outlives a replica that leaves": func(r *rig) {
			r.observe(resync("e", 1), beat("e", 1, 1), changed("f", 1), beat("f", 1, 1))
			settle()
			r.wantCauses("new_epoch")
			r.keepBeating("e", 2, often, 20*time.Second)
			r.observe(leaving("f", 2, 1))
			r.keepBeating("e", 10, often, 5*time.Minute)
			r.wantCauses("new_epoch", "new_epoch")
		},
		// A replica that asks for a resync resends it itself. It does not resend that of another one.
		"an own resync keeps that of another replica": func(r *rig) {
			r.observe(resync("e", 1), beat("e", 1, 1), changed("f", 1), beat("f", 1, 1))
			settle()
			r.wantCauses("new_epoch")
			r.observe(resync("e", 2), beat("e", 2, 2))
			for n := range uint64(10) {
				time.Sleep(10 * time.Second)
				r.observe(beat("e", n+3, 2), beat("f", n+2, 1))
			}
			r.wantCauses("new_epoch", "new_epoch")
		},
	})
}

// The last heartbeat of a replica names the resends that it leaves to the control plane. A resync stands in when the
// slowest write is committed, also if no replica remains.
func TestResyncForTheResendsThatAReplicaLeaves(t *testing.T) {
	for name, other := range map[string]bool{"alone": false, "beside another": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				r.observe(resync("f", 1), beat("f", 1, 1))
				if other {
					r.observe(resync("e", 1), beat("e", 1, 1))
				}
				r.observe(with(beat("f", 2, 1), func(b *core.Heartbeat) { b.Leaving, b.Pending = true, 1 }))
				if !other {
					r.wantState(fleet.Stale, reasons.Stopped)
				}
				settle()
				r.wantCauses()
				if other {
					r.keepBeating("e", 2, often, time.Minute)
					r.wantState(fleet.Fresh, "")
				} else {
					time.Sleep(time.Minute)
				}
				r.wantCauses("replica_lost")
			})
		})
	}
}
