package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// probe is the heartbeat of a process that checks the path and leaves.
func probe(epoch string) message {
	return with(beat(epoch, 1, 0), func(b *core.Heartbeat) { b.Leaving, b.Instance = true, "agent" })
}

// A check of the path must neither replace an agent nor look like one.
func TestProbesLeaveNoTrace(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(probe("check-1"))
		r.wantState(fleet.Unknown, "") // Not stale: no agent was there before.
		r.observe(resync("e", 1), with(beat("e", 1, 1), func(b *core.Heartbeat) { b.Instance = "agent" }))
		settle()
		r.observe(probe("check-2"))
		r.wantState(fleet.Fresh, "")
		time.Sleep(interval)
		r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Instance = "agent" }))
		settle()
		r.wantState(fleet.Fresh, "")
		r.wantCauses()
		if replicas := r.fleet.Get(prod, kyma).Replicas; len(replicas) != 1 || replicas[0].Epoch != "e" {
			t.Errorf("replicas %v, want the agent alone", replicas)
		}
	})
}

// A check in a silent runtime must not hide that the agent is silent.
func TestProbesDoNotEndSilence(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		time.Sleep(10 * interval)
		seen := r.fleet.Get(prod, kyma).LastSeen
		r.observe(probe("check"))
		settle()
		r.wantState(fleet.Stale, "")
		r.wantCauses()
		if now := r.fleet.Get(prod, kyma).LastSeen; !now.Equal(seen) {
			t.Errorf("last seen %v, want %v: the check is no agent", now, seen)
		}
	})
}

// The last heartbeat of an agent that sent something is no probe, also when the fleet is new.
func TestLastHeartbeatsOfAgentsAreNoProbes(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(with(beat("e", 7, 3), func(b *core.Heartbeat) { b.Leaving = true }))
		settle()
		r.wantState(fleet.Stale, reasons.Stopped)
		r.wantCauses("new_epoch")
	})
}
