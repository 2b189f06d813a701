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

// FromFleet returns a function for [Parts].Unconfirmed that treats heartbeats as confirmations. A
// runtime has confirmed a CA when each replica of its agent that sends heartbeats trusts the CA. A
// runtime without heartbeats has not confirmed the CA. No rotation waits for a runtime with a
// revoked sender, because such a runtime gets the new key material and the bundle together.
//
// A runtime counts only after warmUp has passed since the last change of its state, because the
// first heartbeats may come from only one replica of its agent. This time begins again when this
// process starts or becomes the leader. If warmUp is 0, it is 90 s.
func FromFleet(f *fleet.Fleet, warmUp time.Duration) func(ca string, runtimes []core.RuntimeID) []core.RuntimeID {
	warmUp = cmp.Or(warmUp, defaultWarmUp)
	return func(fingerprint string, runtimes []core.RuntimeID) []core.RuntimeID {
		steady := make(map[core.RuntimeID]bool)
		since := time.Now().Add(-warmUp)
		f.Range(func(s fleet.Status) bool {
			if len(s.Replicas) > 0 && !s.Since.After(since) {
				steady[s.Runtime] = true
			}
			return true
		})

		for _, id := range f.WithoutCA(fingerprint) {
			steady[id] = false
		}

		for _, id := range f.Revoked() {
			steady[id] = true
		}

		return slices.DeleteFunc(slices.Clone(runtimes), func(id core.RuntimeID) bool { return steady[id] })
	}
}
