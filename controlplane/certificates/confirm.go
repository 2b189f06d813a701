package certificates

import (
	"cmp"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// defaultWarmUp is longer than two default heartbeats of an agent.
const defaultWarmUp = 90 * time.Second

// FromFleet makes heartbeats confirm, for [New]. A runtime has confirmed a CA when each replica of
// its agent that sends heartbeats trusts the CA. A runtime without heartbeats has not.
//
// The heartbeats of a runtime count warmUp after the first one, because they may come from one
// replica of its agent only. That time begins again when this process starts or takes the lead. 0
// means 90 s.
func FromFleet(f *fleet.Fleet, warmUp time.Duration) func(ca string, runtimes []core.RuntimeID) []core.RuntimeID {
	warmUp = cmp.Or(warmUp, defaultWarmUp)
	return func(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID {
		steady, since := make(map[core.RuntimeID]bool), time.Now().Add(-warmUp)
		f.Range(func(s fleet.Status) bool {
			if len(s.Replicas) > 0 && !s.Since.After(since) {
				steady[s.Runtime] = true
			}
			return true
		})
		for _, id := range f.WithoutCA(fingerprint) {
			steady[id] = false
		}
		return slices.DeleteFunc(slices.Clone(runtimes), func(id core.RuntimeID) bool { return steady[id] })
	}
}
