package fleet_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
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
		f, handler := newFleet(t, fleet.Options{}), &leading{}
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
		refuse := func() { r.fleet.Refuse(prod, kyma, "san_mismatch") }
		wantRefused := func(want string) {
			t.Helper()
			if have := r.fleet.Get(prod, kyma).Refused; have != want {
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
		r.wantState(fleet.Stale, reasons.Refused)
		time.Sleep(2 * time.Minute)
		r.wantState(fleet.Stale, "") // It does not even try any more.
		wantRefused("")
		refuse()
		r.observe(beat("e", 2, 1))
		r.wantState(fleet.Fresh, "")
		wantRefused("")
	})
}

func TestExpectedRuntimes(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		"one without heartbeats stays unknown": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			time.Sleep(interval)
			r.observe(message{}) // Contract v2.
			time.Sleep(time.Hour)
			r.wantState(fleet.Unknown, "")
		},
		"one that is refused": func(r *rig) {
			r.fleet.Expect(prod, kyma)
			time.Sleep(2*interval + 2*time.Second)
			r.fleet.Refuse(prod, kyma, "domain_missing")
			r.wantState(fleet.Stale, reasons.Refused)
		},
	})
}
