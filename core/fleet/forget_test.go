package fleet_test

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

const former core.Manager = "former"

func (r *rig) knows(manager core.Manager) (known bool) {
	r.fleet.Range(func(s fleet.Status) bool {
		known = s.Runtime == prod && s.Manager == manager
		return !known
	})
	return known
}

func TestAManagerIsForgottenOnceNobodySpeaksToIt(t *testing.T) {
	leave := leaving("e", 2, 0)
	tests := map[string]struct {
		before []message
		pass   time.Duration
		after  []message
		want   bool
	}{
		"never heard":                       {nil, 0, nil, true},
		"an agent that speaks":              {[]message{beat("e", 1, 0)}, 2 * interval, nil, false},
		"one that has left":                 {[]message{beat("e", 1, 0), leave}, 0, nil, true},
		"one of two has left":               {[]message{beat("f", 1, 0), beat("e", 1, 0), leave}, 0, nil, false},
		"one that was killed":               {[]message{beat("e", 1, 0)}, 2*interval + 2*time.Second, nil, true},
		"one that has not beaten yet":       {[]message{changed("e", 1)}, interval, nil, false},
		"contract v2":                       {[]message{{}}, 2 * interval, nil, false},
		"contract v2, silent":               {[]message{{}}, 2*interval + time.Second, nil, true},
		"contract v2 after one with beats":  {[]message{beat("e", 1, 0), leave}, time.Minute, []message{{}}, false},
		"silent, and heard again meanwhile": {[]message{beat("e", 1, 0)}, time.Hour, []message{beat("e", 2, 0)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{PollFresh: time.Hour, PollOtherwise: time.Minute}, func(r *rig) {
				if test.before != nil {
					send(r.fleet, prod, former, test.before...)
				}
				time.Sleep(test.pass)
				if test.after != nil {
					send(r.fleet, prod, former, test.after...)
				}
				r.observe(beat("g", 1, 0))
				if got := r.fleet.ForgetManager(prod, former); got != test.want || r.knows(former) == test.want {
					t.Errorf("forgotten: got %t, and it is known: %t, want %t", got, r.knows(former), test.want)
				}
				if !r.knows(kyma) {
					t.Error("another manager is forgotten, too")
				}
				if test.want && r.fleet.RequeueAfter(prod) < time.Hour {
					t.Errorf("looked at after %v, want the long time", r.fleet.RequeueAfter(prod))
				}
			})
		})
	}
}
