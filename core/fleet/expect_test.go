package fleet_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// A restart of the operator made dead runtimes vanish from page and metrics, and ended the alert.
func TestAnExpectedRuntimeIsUnknownAndThenStale(t *testing.T) {
	inBubble(t, fleet.Options{ForgetAfter: time.Hour}, func(r *rig) {
		r.fleet.Expect(prod, kyma)
		time.Sleep(2 * time.Second)
		if n := r.fleet.Summaries()[kyma].Runtimes[fleet.Condition{State: fleet.Unknown}]; n != 1 {
			t.Errorf("%d unknown runtimes, want the expected one", n)
		}

		time.Sleep(2 * interval)
		r.wantState(fleet.Stale, "")
		time.Sleep(2 * time.Hour) // It is not forgotten.
		r.fleet.Expect(prod, kyma)
		r.wantState(fleet.Stale, "")
		if n := r.fleet.Summaries()[kyma].Runtimes[fleet.Condition{State: fleet.Stale}]; n != 1 {
			t.Errorf("%d stale runtimes, want the expected one", n)
		}

		r.observe(started("e")...)
		r.wantState(fleet.Fresh, "")
		r.fleet.Forget(prod)
		time.Sleep(2 * interval)
		r.wantState(fleet.Unknown, "")
		if _, known := r.fleet.Summaries()[kyma].Runtimes[fleet.Condition{State: fleet.Unknown}]; known {
			t.Error("a runtime that was forgotten is expected still")
		}
	})
}

// leading is a handler on a replica that may not lead.
type leading struct{ leads atomic.Bool }

func (l *leading) Handle(context.Context, core.Delivery) error { return nil }
func (l *leading) Ready() error {
	if l.leads.Load() {
		return nil
	}
	return core.ErrNotReady
}

// No runtime sends to a replica that does not lead, so nothing is expected there.
func TestOnlyALeaderExpectsRuntimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		handler := &leading{}
		defer start(t, f, kyma, handler)()
		f.Expect(prod, kyma)
		f.Expect(prod, "served-elsewhere")
		time.Sleep(time.Hour)

		if all := f.Summaries(); len(all) > 0 {
			t.Errorf("runtimes on a replica that does not lead: %v", all)
		}

		handler.leads.Store(true)
		time.Sleep(interval)
		if s := f.Get(prod, kyma); s.State != fleet.Unknown {
			t.Errorf("%s 30 s after the election, want unknown", s.State)
		}

		time.Sleep(interval + 2*time.Second)
		if s := f.Get(prod, kyma); s.State != fleet.Stale || len(f.Summaries()) != 1 {
			t.Errorf("%s a minute after the election, want stale, and one manager", s.State)
		}
	})
}

// The control plane knew whom it refused and why, and showed a silent runtime.
func TestARefusedRuntimeNamesTheReason(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		refuse := func() { r.fleet.Receiver().Refuse(prod, kyma, "san_mismatch") }
		wantRefused := func(want string) {
			t.Helper()
			if have := r.fleet.Get(prod, kyma).Refused; string(have) != want {
				t.Errorf("refused %q, want %q", have, want)
			}
		}

		refuse()
		r.wantState(fleet.Unknown, "") // A runtime that is not known takes no room.
		wantRefused("")

		r.observe(started("e")...)
		refuse()
		r.wantState(fleet.Fresh, "")
		wantRefused("san_mismatch")

		time.Sleep(2*interval + time.Second)
		refuse()
		r.wantState(fleet.Stale, string(fleet.ReasonRefused))

		time.Sleep(2 * time.Minute)
		r.wantState(fleet.Stale, "") // It does not even try any more.
		wantRefused("")

		refuse()
		r.observe(beat("e", 2, 1))
		r.wantState(fleet.Fresh, "")
		wantRefused("")
	})
}

// An expected runtime without heartbeats is unknown at first. It becomes stale unless an agent
// without heartbeats speaks for it.
func TestExpectedRuntimes(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		"one without heartbeats stays unknown": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			time.Sleep(interval)
			r.observe(message{}) // Contract v2.
			time.Sleep(time.Hour)
			r.wantState(fleet.Unknown, "")
		},
		"one that died before the restart, with an event that a stream delivers now": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			time.Sleep(interval)
			for range 3 {
				r.wantState(fleet.Unknown, "")
				r.observe(kept(changed("e", 7)))
				time.Sleep(interval)
			}

			r.wantState(fleet.Stale, "")
			r.observe(message{}) // An agent with contract v2 takes over.
			time.Sleep(time.Hour)
			r.wantState(fleet.Unknown, "")
		},
		"one with rare heartbeats": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			r.observe(with(beat("e", 1, 0), func(b *core.Heartbeat) { b.Interval = time.Hour }))
			time.Sleep(10 * interval)
			r.wantState(fleet.Fresh, "")
		},
		"one that is refused": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			time.Sleep(2*interval + 2*time.Second)
			r.fleet.Receiver().Refuse(prod, kyma, "domain_missing")
			r.wantState(fleet.Stale, string(fleet.ReasonRefused))
		},
	})
}

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

// A misspelt manager, and a fleet that no listener has, would show in nothing else.
func TestWrongWiringIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
		f := newFleet(t, fleet.Options{Logger: log})
		unfed := newFleet(t, fleet.Options{Logger: log})
		stop := start(t, f, kyma, &leading{}) // It does not lead, and serves its manager nevertheless.
		f.Expect(prod, kyma)
		f.Expect(prod, "kymaa")
		f.Expect("another", "kymaa")

		for n := range 4 {
			f.RequeueAfter(prod)
			send(unfed, prod, kyma, beat("e", uint64(n+1), 0)) // The listener is mounted in another server.
			unfed.RequeueAfter(prod)
			time.Sleep(time.Minute)
		}

		stop()
		if s := out.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "manager=kymaa") || !strings.Contains(s, `manager=""`) {
			t.Errorf("the log is %q, want a line for the manager, and one for the fleet", s)
		}
		if err := f.Receiver().Start(t.Context(), map[core.Manager]core.Handler{kyma: core.HandlerFunc(nil)}); err == nil {
			t.Error("Start takes a nil handler")
		}
	})
}
