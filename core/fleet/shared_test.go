package fleet_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// active are the replicas of an operator without leader election. Each has a fleet of its own, and takes some of the
// batches of an agent.
type active struct {
	t                    *testing.T
	fleets               []*fleet.Fleet
	resyncs, transitions atomic.Int64
	random               *rand.Rand
	number, sequence     uint64
}

func startActive(t *testing.T, replicas int) *active {
	t.Helper()
	a := &active{t: t, random: rand.New(rand.NewPCG(20, 10))}
	for range replicas {
		f := newFleet(t, fleet.Options{})
		f.OnChange(func(fleet.Transition) { a.transitions.Add(1) })
		t.Cleanup(start(t, f, kyma, count(&a.resyncs)))
		a.fleets = append(a.fleets, f)
	}
	a.send(resync("e", 1))
	a.sequence = 1
	return a
}

// send sends messages to one replica.
func (a *active) send(messages ...message) {
	send(a.fleets[a.random.IntN(len(a.fleets))], prod, kyma, messages...)
}

// run sends a heartbeat each 30 s, and an event after every so many seconds.
func (a *active) run(length, between time.Duration) {
	for at := time.Second; at <= length; at += time.Second {
		time.Sleep(time.Second)
		if at%between == 0 {
			a.sequence++
			a.send(changed("e", a.sequence))
		}
		if at%interval == 0 {
			a.number++
			a.send(beat("e", a.number, a.sequence))
		}
	}
}

// wantQuiet wants fewer resyncs and changes of states than given, for all replicas since the last call.
func (a *active) wantQuiet(during string, resyncs, transitions int64) {
	a.t.Helper()
	gotResyncs, gotTransitions := a.resyncs.Swap(0), a.transitions.Swap(0)
	a.t.Logf("%s: %d resyncs, %d changes of states", during, gotResyncs, gotTransitions)
	if gotResyncs > resyncs || gotTransitions > transitions {
		a.t.Errorf("%s: %d resyncs and %d changes of states, want at most %d and %d",
			during, gotResyncs, gotTransitions, resyncs, transitions)
	}
}

// Each of several active replicas sees a part of the numbers of an epoch. Its gaps show that, and then lead to no more
// resyncs. Without that, three replicas request 291 in an hour with an event each 10 s.
func TestActiveReplicasShareARuntime(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int
		between  time.Duration
		learning time.Duration
	}{
		"two replicas, an event each 10 s":     {2, 10 * time.Second, 10 * time.Minute},
		"three replicas, an event each 10 s":   {3, 10 * time.Second, 10 * time.Minute},
		"three replicas, an event each minute": {3, time.Minute, 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startActive(t, test.replicas)
				a.run(test.learning, test.between)
				a.wantQuiet("until the gaps show it", 10*int64(test.replicas), 10*int64(test.replicas))
				a.run(time.Hour, test.between)
				a.wantQuiet("an hour", 0, 0)
				for _, f := range a.fleets {
					if s := f.Get(prod, kyma); s.State != fleet.Degraded || s.Reason != reasons.SharedByReplicas {
						t.Errorf("%s %q, want degraded %q", s.State, s.Reason, reasons.SharedByReplicas)
					}
				}
				time.Sleep(10 * time.Minute)
				for _, f := range a.fleets {
					if s := f.Get(prod, kyma); s.State != fleet.Stale {
						t.Errorf("10 min after the last request: %s, want stale", s.State)
					}
				}
			})
		})
	}
}

// Of several replicas, one remains. Its first numbers in a row end the condition, with one resync for gaps meanwhile.
func TestSharedByReplicasEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startActive(t, 2)
		a.run(10*time.Minute, 10*time.Second)
		a.fleets = a.fleets[:1]
		a.run(time.Second, time.Minute)
		a.resyncs.Store(0)
		a.transitions.Store(0)
		a.run(10*time.Minute, 10*time.Second)
		a.wantQuiet("one replica that remains", 1, 2)
		if s := a.fleets[0].Get(prod, kyma); s.State != fleet.Fresh {
			t.Errorf("%s %q, want fresh", s.State, s.Reason)
		}
	})
}

// A runtime that is quiet after its gaps does not stay shared.
func TestSharedByReplicasEndsWithoutEvents(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		for n := range uint64(5) {
			time.Sleep(time.Second)
			r.observe(changed("e", 2*n+1))
		}
		r.observe(beat("e", 1, 9))
		r.wantState(fleet.Degraded, reasons.SharedByReplicas)
		for n := range uint64(10) {
			time.Sleep(interval)
			r.observe(beat("e", n+2, 9))
		}
		r.wantState(fleet.Fresh, "")
	})
}

// One replica that loses batches resyncs for each of the gaps: three in a row, and then one of four batches.
func TestGapsOfOneReplicaAreNotSharing(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		want := []string{"gap", "gap", "gap"}
		for n := range uint64(4) {
			r.observe(changed("e", 2*n+1))
			settle()
		}
		for n := range uint64(6) {
			r.observe(changed("e", n+8))
		}
		for n := range uint64(50) {
			number := 4*n + 15
			r.observe(changed("e", number))
			settle()
			r.observe(changed("e", number+1))
			r.observe(changed("e", number+2), beat("e", n+1, number+2))
			want = append(want, "gap")
			// The resend of the new epoch is due while a resync is pending, which stands in for it.
			time.Sleep(9500 * time.Millisecond)
		}
		r.wantState(fleet.Fresh, "")
		r.wantCauses(append([]string{"new_epoch"}, want...)...)
	})
}

// The transport keeps the events that the handler refuses, and delivers them again after later ones. No other replica
// took them.
func TestKeptEventsAreNotSharing(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		const messages = 20
		for n := range uint64(messages) {
			r.observe(kept(changed("e", 2*n+2)))
			r.observe(changed("e", 2*n+3))
		}
		r.observe(beat("e", 2, 2*messages+1))
		settle()
		r.wantState(fleet.Fresh, "")
		r.wantCauses("gap") // In case that the transport loses them.
	})
}
