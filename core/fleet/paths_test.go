package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// seldom is an interval of heartbeats at which their absence alone is noticed late.
const seldom = 5 * time.Minute

// on is a heartbeat at a long interval, on a path that ends when it is closed.
func on(path chan struct{}, m message) message {
	m.beat.Interval, m.peer.Lost = seldom, path
	return m
}

// reconnects is the longest time that an agent takes.
const reconnects = 30 * time.Second

func reconnect(r *rig, first, second chan struct{}) {
	close(first)
	time.Sleep(reconnects)
	r.observe(on(second, beat("e", 2, 1)))
}

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
				first, second := make(chan struct{}), make(chan struct{})
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
		first, second := make(chan struct{}), make(chan struct{})
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
