package simulation

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
)

// TestIsolation compares latencies with and without an event, a manager or a runtime that misbehaves for ever. The
// p99 of all others stays within a factor of 1.5. Virtual time gives each seed the same p99. make test plays
// contract v3, and make simulate all contracts.
func TestIsolation(t *testing.T) {
	keys := testPKI(t)
	const most = 1.5
	for _, version := range contract.Versions() {
		if *seeds == few && version != contract.V3 {
			continue
		}
		alone := p99(t, keys, version)
		for name, faults := range misbehaving() {
			t.Run(fmt.Sprintf("%s/%s", version, name), func(t *testing.T) {
				beside := p99(t, keys, version, faults...)
				if float64(beside) > most*float64(alone) {
					t.Errorf("p99 of the others is %s, and %s without: want at most a factor of %v", beside, alone, most)
				}
				t.Logf("p99 of the others is %s, and %s without", beside, alone)
			})
		}
	}
}

// misbehaving has faults of object 0 or manager gamma of runtime 0, and of runtime 1, that never end.
func misbehaving() map[string][]Fault {
	const ever = 5 * time.Minute // Longer than the measurement.
	return map[string][]Fault{
		"events refused":    {{Kind: EventRefused}},
		"events forbidden":  {{Kind: EventForbidden}},
		"events panic":      {{Kind: EventPanics}},
		"manager unknown":   {{Kind: ManagerUnknown}},
		"managers invented": {{Kind: ManagersInvented}},
		"runtime forbidden": {{Kind: SenderForbidden, Runtime: 1, For: ever}},
		"runtime unknown":   {{Kind: SenderUnknown, Runtime: 1, For: ever}},
		"runtime slow":      {{Kind: MapSlow, Runtime: 1, For: ever}},
		"runtime silent":    {{Kind: LinksSilent, Runtime: 1, For: ever}},
		"runtime paused":    {{Kind: AgentPaused, Runtime: 1, For: ever}},
		"strangers silent":  {{Kind: StrangersSilent, For: ever}},
	}
}

func p99(t *testing.T, keys *pki, version contract.Version, faults ...Fault) (of time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		w := newWorld(neighbours(version, faults), keys, nil)
		w.run()
		of = kit.Sorted(w.history.Latencies()).At(99)
	})
	return of
}

// neighbours returns a plan with many writes, and with faults that never end. The writes do not depend on the
// faults.
func neighbours(version contract.Version, faults []Fault) *Plan {
	d := newDice(0)
	p := &Plan{
		Length: 4 * time.Minute, Operators: 1, Managers: []core.Manager{"alpha"}, Faults: faults, Measured: true,
	}
	for i := range 2 {
		p.Runtimes = append(p.Runtimes, RuntimePlan{
			Name: fmt.Sprintf("skr-%d", i), Contract: version, Protocol: "h2", Agents: 1, Objects: 6,
		})
	}
	for range 60 {
		runtime := d.weighted(3, 1)
		p.Writes = append(p.Writes, Write{
			At: d.between(30*time.Second, p.Length), Runtime: runtime, Object: d.weighted(5, 1, 1, 1, 1, 1), Kind: Update,
			Delay: d.between(time.Millisecond, 50*time.Millisecond),
		})
	}
	return p
}
