package fleet_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// sees observes a first heartbeat of a runtime.
func sees(r *rig, id core.RuntimeID, epoch, instance, version string) {
	r.fleet.Receiver().Observe(core.Peer{ID: id}, kyma, core.Batch{Source: id, Epoch: epoch, Heartbeat: &core.Heartbeat{
		ID: "i", Number: 1, Interval: interval, Canary: core.CanaryAlive, Instance: instance, Version: version,
	}}, nil)
}

func (r *rig) wantVersions(want map[string]int) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.fleet.Summaries()[kyma].Versions); diff != "" {
		r.t.Errorf("versions (-want +have):\n%s", diff)
	}
}

// Each runtime counts once for each version of its live replicas. A version is foreign text, and
// becomes a label only if it looks like one.
func TestVersions(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		// The new pod of runtime-1 cannot start: nothing else shows it.
		"a rollout that stops": func(r *rig) {
			sees(r, "runtime-1", "old", "agent-0", "v1.2.3")
			sees(r, "runtime-2", "new", "agent-1", "v1.3.0")
			r.wantVersions(map[string]int{"v1.2.3": 1, "v1.3.0": 1})
		},
		"two versions in one runtime": func(r *rig) {
			sees(r, prod, "old", "agent-0", "v1.2.3")
			sees(r, prod, "new", "agent-1", "v1.3.0")
			r.wantVersions(map[string]int{"v1.2.3": 1, "v1.3.0": 1})
			status := r.fleet.Get(prod, kyma)
			if diff := cmp.Diff([]string{"v1.2.3", "v1.3.0"}, status.Versions()); diff != "" {
				r.t.Errorf("versions of the runtime (-want +have):\n%s", diff)
			}
		},
		"two replicas of one version are one runtime": func(r *rig) {
			sees(r, prod, "a", "agent-0", "v1.2.3")
			sees(r, prod, "b", "agent-1", "v1.2.3")
			r.wantVersions(map[string]int{"v1.2.3": 1})
		},
		"a silent runtime has none": func(r *rig) {
			sees(r, prod, "a", "agent-0", "v1.2.3")
			time.Sleep(10 * interval)
			r.wantVersions(map[string]int{})
			status := r.fleet.Get(prod, kyma)
			if have := status.Versions(); len(have) > 0 {
				r.t.Errorf("versions %q of a stale runtime", have)
			}
		},
		"no version": func(r *rig) {
			sees(r, prod, "a", "agent-0", "")
			r.wantVersions(map[string]int{})
		},
		// The characters just outside of letters and digits, and others that a label must not have.
		"foreign characters": func(r *rig) {
			const foreign = "/:@[`{ \"\\\n\x00<>=,é"
			for n, c := range []rune(foreign) {
				sees(r, core.RuntimeID(fmt.Sprint("runtime-", n)), "a", "agent-0", "v1"+string(c))
			}

			sees(r, "right", "a", "agent-0", "azAZ09.+-_")
			r.wantVersions(map[string]int{"azAZ09.+-_": 1, fleet.OtherVersions: len([]rune(foreign))})
		},
		// A version is foreign input, and a label of a metric.
		"bounded": func(r *rig) {
			for i := range 100 {
				sees(r, core.RuntimeID(fmt.Sprint("hostile-", i)), "e", "a", fmt.Sprint("v", i))
				sees(r, core.RuntimeID(fmt.Sprint("broken-", i)), "e", "a", fmt.Sprint(`"} 1`, i))
			}

			sees(r, "runtime-1", "a", "agent-0", "v9.9.9")
			sees(r, "runtime-2", "a", "agent-0", "v9.9.9")
			summary := r.fleet.Summaries()[kyma].Versions
			if len(summary) != 9 || summary["v9.9.9"] != 2 || summary[fleet.OtherVersions] != 193 {
				r.t.Errorf("versions %v, want nine keys, two runtimes with v9.9.9, and 193 others", summary)
			}
		},
	})
}

// A clock that is wrong is named, and a heartbeat that is late is not taken for one.
func TestClockSkew(t *testing.T) {
	for name, test := range map[string]struct {
		ahead []time.Duration // of each heartbeat
		want  time.Duration
	}{
		"equal":                        {[]time.Duration{-20 * time.Millisecond, -30 * time.Millisecond}, 0},
		"behind":                       {[]time.Duration{-3 * time.Minute, -3 * time.Minute}, -3 * time.Minute},
		"ahead":                        {[]time.Duration{time.Hour}, time.Hour},
		"one heartbeat is late":        {[]time.Duration{0, -40 * time.Second}, 0},
		"a late one of a wrong clock":  {[]time.Duration{-5 * time.Minute, -6 * time.Minute}, -5 * time.Minute},
		"corrected":                    {[]time.Duration{time.Hour, 0, 0}, 0},
		"years behind, as without NTP": {[]time.Duration{-20 * 365 * 24 * time.Hour}, -20 * 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				for i, ahead := range test.ahead {
					time.Sleep(interval)
					made := time.Now().Add(ahead)
					r.observe(with(beat("e", uint64(i)+1, 0), func(b *core.Heartbeat) { b.Time = made }))
				}

				replicas := r.fleet.Get(prod, kyma).Replicas
				if len(replicas) != 1 || replicas[0].ClockSkew != test.want {
					t.Errorf("replicas %+v, want one with a skew of %v", replicas, test.want)
				}
				if have := r.fleet.Summaries()[kyma].ClockSkew; have != test.want.Abs() {
					t.Errorf("largest skew %v, want %v", have, test.want.Abs())
				}
			})
		})
	}
}

// A heartbeat without a time says nothing about a clock.
func TestNoTimeIsNoSkew(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(with(beat("e", 1, 0), func(b *core.Heartbeat) { b.Time = time.Time{} }))
		if have := r.fleet.Summaries()[kyma].ClockSkew; have != 0 {
			t.Errorf("skew %v of a heartbeat without a time", have)
		}
	})
}

// A replica that does not lead has handlers that are not ready.
func TestLeadsSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		wantLeads := func(step string, want time.Time) {
			t.Helper()

			synctest.Wait()
			if have := f.LeadsSince(); !have.Equal(want) {
				t.Errorf("%s: leads since %v, want %v", step, have, want)
			}
		}

		wantLeads("before the start", time.Time{})
		handler := &leading{}
		stop := start(t, f, kyma, handler)
		time.Sleep(time.Minute)
		wantLeads("not elected", time.Time{})

		handler.leads.Store(true)
		time.Sleep(time.Second)
		began := time.Now()
		wantLeads("elected", began)

		time.Sleep(time.Hour)
		wantLeads("an hour later", began)
		stop()
		wantLeads("stopped", time.Time{})
	})
}

// Two listeners share a fleet. The replica leads until the last of them has ended.
func TestLeadsSinceTheFirstOfTwoListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		handler := &leading{}
		handler.leads.Store(true)
		began := time.Now()
		stops := []func(){start(t, f, kyma, handler), start(t, f, "other", handler)}
		time.Sleep(time.Minute)

		stops[0]()
		time.Sleep(time.Minute)
		if have := f.LeadsSince(); have.Sub(began).Abs() > time.Second {
			t.Errorf("after the end of one listener it leads since %v, want %v", have, began)
		}

		stops[1]()
		if have := f.LeadsSince(); !have.IsZero() {
			t.Errorf("after the end of both, it leads since %v", have)
		}
	})
}

// Metrics without a list of managers have zeros from the election on, so that alerts can compare.
func TestServedManagersHaveSummaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		handler := &leading{}
		stops := []func(){start(t, f, kyma, handler), start(t, f, "other", handler)}

		wants := func(step string, want ...core.Manager) {
			t.Helper()

			time.Sleep(time.Minute)
			synctest.Wait()
			if have := slices.Sorted(maps.Keys(f.Summaries())); !slices.Equal(have, want) {
				t.Errorf("%s: summaries of %v, want %v", step, have, want)
			}
		}

		wants("not elected")
		handler.leads.Store(true)
		wants("elected", kyma, "other")

		for _, stop := range stops {
			stop()
		}

		wants("stopped")
	})
}
