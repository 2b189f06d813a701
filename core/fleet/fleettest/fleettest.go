// Package fleettest puts runtimes of a fleet into a given state, for unit tests of an operator that
// polls by freshness.
//
// A fleet uses the clock of the process. In a bubble of testing/synctest, time.Sleep advances that
// clock, and a fresh runtime becomes stale after two hours: a test sleeps two hours and a second.
//
// Observers and hooks of the fleet are called as for real heartbeats.
package fleettest

import (
	"fmt"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// interval is the interval of the heartbeats: the longest interval that a fleet accepts.
const interval = time.Hour

// Set sends the heartbeats that lead to a condition of a runtime for a manager. A stale runtime
// gets the reason "stopped", because its agent sends a last heartbeat. Set panics if no heartbeat
// leads to the condition, for example because its reason is unknown.
func Set(f *fleet.Fleet, runtime core.RuntimeID, manager core.Manager, want fleet.Condition) {
	if want.State == fleet.Stale {
		want.Reason = fleet.ReasonStopped
	}

	// If the heartbeats of the current agent do not lead to it, a new agent sends them: drops of
	// the current one count for a while.
	for _, a := range []*agent{current(f, runtime, manager), next(f, runtime, manager)} {
		a.sendCondition(f, want)
		got := f.Get(runtime, manager)
		if got.State == want.State && got.Reason == want.Reason {
			return
		}
		a.sendHeartbeat(f, func(b *core.Heartbeat) { b.Leaving = true })
	}

	panic(fmt.Sprintf("fleettest: runtime %q of manager %q cannot be %s %s", runtime, manager, want.State, want.Reason))
}

type agent struct {
	peer    core.Peer
	manager core.Manager
	epoch   string
	last    core.Heartbeat
}

func current(f *fleet.Fleet, runtime core.RuntimeID, manager core.Manager) *agent {
	a := next(f, runtime, manager)
	for _, replica := range f.Get(runtime, manager).Replicas {
		if replica.Heartbeat != nil {
			a.epoch = replica.Epoch
			a.last = *replica.Heartbeat
		}
	}
	return a
}

func next(f *fleet.Fleet, runtime core.RuntimeID, manager core.Manager) *agent {
	now := time.Now()
	return &agent{
		peer:    core.Peer{ID: runtime, NotBefore: now.Add(-year), NotAfter: now.Add(year)},
		manager: manager, epoch: fmt.Sprint("fleettest-", now.UnixNano(), "-", len(f.Get(runtime, manager).Replicas)),
	}
}

const year = 365 * 24 * time.Hour

// gaps are enough for the reason "shared_by_replicas".
const gaps = 5

func (a *agent) sendCondition(f *fleet.Fleet, want fleet.Condition) {
	if want.State == fleet.Stale && a.last.Number == 0 { // The fleet ignores an agent that only leaves.
		a.sendHeartbeat(f, func(*core.Heartbeat) {})
	}

	switch want.Reason {
	case fleet.ReasonCertificateExpiring:
		a.peer.NotAfter = time.Now().Add(time.Minute)
	case fleet.ReasonDropping, fleet.ReasonWebhookUnreachable: // They count since the heartbeat before.
		a.sendHeartbeat(f, func(b *core.Heartbeat) { b.Canary = core.CanaryOff })
	case fleet.ReasonSharedByReplicas:
		for range gaps {
			a.sendHeartbeat(f, func(b *core.Heartbeat) { b.Sequence += 2 })
		}
	default: // The last heartbeat alone shows the others.
	}

	a.sendHeartbeat(f, func(b *core.Heartbeat) { show(b, want) })
}

func show(b *core.Heartbeat, want fleet.Condition) {
	b.Leaving = want.State == fleet.Stale
	if want.State == fleet.Unproved {
		b.Canary = core.CanaryOff
	}

	switch want.Reason {
	case fleet.ReasonCanaryLost:
		b.Canary = core.CanaryLost
	case fleet.ReasonCanaryFailing:
		b.Canary = core.CanaryFailing
		b.CanaryError = "PATCH /apis/coordination.k8s.io: 403 Forbidden"
	case fleet.ReasonWebhookChanged:
		b.WebhookError = "default.widgets.example.com is missing"
	case fleet.ReasonWebhookUnreachable:
		b.Canary = core.CanaryOff
		b.WebhookFailures++
	case fleet.ReasonDropping:
		b.Dropped = map[core.Reason]int64{"overflow": b.Dropped["overflow"] + 1}
	case fleet.ReasonPendingTooLong:
		b.Pending = 1
		b.OldestPending = year
	case fleet.ReasonKeyMaterial:
		b.KeyMaterialError = "the new certificate has no key"
	case fleet.ReasonConfiguration:
		b.ConfigError = "MANAGERS_FILE: the file is empty"
	default: // The other reasons show in no field of a single heartbeat.
	}
}

func (a *agent) sendHeartbeat(f *fleet.Fleet, change func(*core.Heartbeat)) {
	now := time.Now()
	a.last = core.Heartbeat{
		ID: fmt.Sprint(a.epoch, "-", a.last.Number+1), Time: now, Number: a.last.Number + 1, Interval: interval,
		Sequence: a.last.Sequence, Canary: core.CanaryAlive, Dropped: a.last.Dropped,
		WebhookFailures: a.last.WebhookFailures,
	}

	change(&a.last)
	heartbeat := a.last
	f.Receiver().Observe(a.peer, a.manager, core.Batch{Source: a.peer.ID, Epoch: a.epoch, Heartbeat: &heartbeat}, nil)
}
