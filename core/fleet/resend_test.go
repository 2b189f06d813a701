package fleet_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

const (
	// lateCommit is longer than a replica may wait before its next attempt, and an API server for
	// the slowest webhook.
	lateCommit = 80 * time.Second
	often      = 10 * time.Second // between two heartbeats
)

// TestResends has the resyncs that a fleet sends once more.
func TestResends(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		// A replica may be cut off for a minute before it is killed. Its loss is then found within
		// a second, and a write that it has reviewed just before is committed after the resync.
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
		// Two replicas are cut off together, for a time that is too short for silence. The one that
		// was heard first is not lost before the other one comes back: it may still review writes,
		// and be killed afterwards.
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
		// The resend for the last replica replaces the other resend.
		"once for two that leave with events": func(r *rig) {
			leave := func(b *core.Heartbeat) {
				b.Leaving = true
				b.Pending = 1
			}
			r.observe(started("e", "f", "g")...)
			r.observe(with(beat("e", 2, 1), leave))
			r.keepBeating("g", 2, often, 2*often)
			r.observe(with(beat("f", 2, 1), leave))
			r.keepBeating("g", 20, often, 3*often)
			r.wantCauses()

			r.keepBeating("g", 40, often, lateCommit)
			r.wantCauses("replica_lost")
		},
		// An agent that asks for a resync at its start also sends it once more.
		"not for that of an agent": func(r *rig) {
			r.observe(beat("e", 1, 0))
			r.observe(resync("e", 1), beat("e", 2, 1))
			r.keepBeating("e", 3, often, 5*time.Minute)
			r.wantCauses()
		},
		// After a restart of the operator, another replica may be killed before its first request.
		// Nothing shows that it was there. It may have reviewed a write that is committed later. A
		// resync that an agent asks for may be too early.
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
		// A rollout may lose several replicas within two minutes. The last resend replaces the
		// others.
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
		// The first requests of a new epoch may be lost in an outage. The fleet has known the
		// runtime for longer.
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
		// The resync of a new epoch replaces the writes that the former life of the agent has
		// reviewed. The new life may leave in good order before the resend is due. Another replica
		// stays.
		"it outlives a replica that leaves": func(r *rig) {
			r.observe(resync("e", 1), beat("e", 1, 1), changed("f", 1), beat("f", 1, 1))
			settle()
			r.wantCauses("new_epoch")

			r.keepBeating("e", 2, often, 20*time.Second)
			r.observe(leaving("f", 2, 1))
			r.keepBeating("e", 10, often, 5*time.Minute)
			r.wantCauses("new_epoch", "new_epoch")
		},
		// A replica that asks for a resync resends it itself. It does not resend the resync of
		// another replica.
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

// The last heartbeat of a replica names the resends that it leaves to the control plane. A resync
// replaces them when the slowest write is committed, also if no replica remains.
func TestResyncForTheResendsThatAReplicaLeaves(t *testing.T) {
	for name, other := range map[string]bool{"alone": false, "beside another": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				r.observe(resync("f", 1), beat("f", 1, 1))
				if other {
					r.observe(resync("e", 1), beat("e", 1, 1))
				}
				r.observe(with(beat("f", 2, 1), func(b *core.Heartbeat) {
					b.Leaving = true
					b.Pending = 1
				}))
				if !other {
					r.wantState(fleet.Stale, string(fleet.ReasonStopped))
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

// seldom is an interval of heartbeats at which their absence alone is noticed late.
const seldom = 5 * time.Minute

// on is a heartbeat at a long interval, on a path that ends when it is closed.
func on(path chan struct{}, m message) message {
	m.beat.Interval = seldom
	m.peer.Lost = path
	return m
}

// reconnects is the longest time that an agent takes.
const reconnects = 30 * time.Second

func reconnect(r *rig, first, second chan struct{}) {
	close(first)
	time.Sleep(reconnects)
	r.observe(on(second, beat("e", 2, 1)))
}

// The end of the last connection of a runtime shows a killed agent before its next heartbeat is
// due. An end for another reason shows nothing.
func TestEndOfTheLastPath(t *testing.T) {
	for name, test := range map[string]struct {
		play  func(r *rig, first, second chan struct{})
		after time.Duration
		want  fleet.State
	}{
		"a killed agent": {func(_ *rig, first, _ chan struct{}) { close(first) }, 37 * time.Second, fleet.Stale},
		"an agent that may reconnect": {
			func(_ *rig, first, _ chan struct{}) { close(first) }, reconnects, fleet.Fresh,
		},
		"an idle agent":                         {func(*rig, chan struct{}, chan struct{}) {}, 2*seldom - time.Second, fleet.Fresh},
		"a frozen agent":                        {func(*rig, chan struct{}, chan struct{}) {}, 2*seldom + time.Second, fleet.Stale},
		"a connection that the listener closed": {reconnect, seldom, fleet.Fresh},
		"the end of one of two paths": {func(r *rig, first, second chan struct{}) {
			r.observe(on(second, beat("e", 2, 1)))
			close(first)
		}, seldom, fleet.Fresh},
		"a late request on the former path": {func(r *rig, first, second chan struct{}) {
			r.observe(on(second, beat("e", 2, 1)), on(first, beat("e", 1, 1)))
			close(first)
		}, seldom, fleet.Fresh},
		"a gateway": {func(r *rig, first, _ chan struct{}) {
			r.observe(on(nil, beat("e", 2, 1)))
			close(first)
		}, seldom, fleet.Fresh},
		"heartbeats at the default interval": {func(r *rig, first, second chan struct{}) {
			close(first)
			next := on(second, beat("e", 2, 1))
			next.beat.Interval = interval
			r.observe(next)
			close(second)
		}, 2*interval - time.Second, fleet.Fresh},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				first := make(chan struct{})
				second := make(chan struct{})
				r.observe(resync("e", 1), on(first, beat("e", 1, 1)))
				test.play(r, first, second)
				time.Sleep(test.after)
				r.wantState(test.want, "")
				r.wantCauses()
			})
		})
	}
}

// One of two replicas is lost, with its pending events. When both are cut off, they may come back.
func TestEndOfTheLastPathOfAReplica(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		first := make(chan struct{})
		second := make(chan struct{})
		r.observe(resync("e", 1), on(first, beat("e", 1, 1)), resync("f", 1), on(second, beat("f", 1, 1)))
		close(first)
		time.Sleep(20 * time.Second) // Probes do not fail at the same time.
		close(second)
		time.Sleep(time.Minute)
		r.wantState(fleet.Stale, "")
		r.wantCauses()

		for _, epoch := range []string{"e", "f"} {
			r.observe(on(make(chan struct{}), beat(epoch, 2, 1)))
		}

		settle()
		r.wantCauses("returned")
	})
	inBubble(t, fleet.Options{}, func(r *rig) {
		first := make(chan struct{})
		r.observe(resync("e", 1), on(first, beat("e", 1, 1)), resync("f", 1), on(make(chan struct{}), beat("f", 1, 1)))
		close(first)
		time.Sleep(45 * time.Second)
		r.wantState(fleet.Fresh, "")
		r.wantCauses("replica_lost")
	})
}

// active are the replicas of an operator without leader election. Each has a separate fleet, and
// takes some of the batches of an agent.
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

// wantQuiet wants fewer resyncs and changes of states than given, for all replicas since the last
// call.
func (a *active) wantQuiet(during string, resyncs, transitions int64) {
	a.t.Helper()
	gotResyncs := a.resyncs.Swap(0)
	gotTransitions := a.transitions.Swap(0)
	a.t.Logf("%s: %d resyncs, %d changes of states", during, gotResyncs, gotTransitions)
	if gotResyncs > resyncs || gotTransitions > transitions {
		a.t.Errorf("%s: %d resyncs and %d changes of states, want at most %d and %d",
			during, gotResyncs, gotTransitions, resyncs, transitions)
	}
}

// Each of several active replicas sees a part of the numbers of an epoch. Its gaps show that, and
// then lead to no more resyncs. Without that, three replicas request 291 in an hour with an event
// each 10 s.
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
					if s := f.Get(prod, kyma); s.State != fleet.Degraded || s.Reason != fleet.ReasonSharedByReplicas {
						t.Errorf("%s %q, want degraded %q", s.State, s.Reason, fleet.ReasonSharedByReplicas)
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

// Of several replicas, one remains. Its first numbers in a row end the condition, with one resync
// for gaps meanwhile.
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
		r.wantState(fleet.Degraded, string(fleet.ReasonSharedByReplicas))
		for n := range uint64(10) {
			time.Sleep(interval)
			r.observe(beat("e", n+2, 9))
		}

		r.wantState(fleet.Fresh, "")
	})
}

// One replica that loses batches resyncs for each of the gaps: three in a row, and then one of four
// batches.
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

			// The resend of the new epoch is due while a resync is pending, which replaces it.
			time.Sleep(9500 * time.Millisecond)
		}

		r.wantState(fleet.Fresh, "")
		r.wantCauses(append([]string{"new_epoch"}, want...)...)
	})
}

// The transport keeps the events that the handler refuses, and delivers them again after later
// ones. No other replica took them.
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
