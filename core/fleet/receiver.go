package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Receiver is the side of a [Fleet] that receivers feed, such as a listener or a consumer. An
// operator holds the Fleet, and hands it to its receivers. Only a transport of its own needs a
// Receiver, and package intake has it for that. The methods may be called concurrently.
type Receiver struct{ fleet *Fleet }

// Receiver returns the side of the fleet that receivers feed.
func (f *Fleet) Receiver() Receiver { return Receiver{f} }

// Observe takes in one request that peer sent to a manager. The caller has verified the peer.
// Refused has the events that the handler did not take: they are signs of life, too. An error that
// is a [core.KeptError] means that the transport keeps the event, and the sender does not. The
// fleet then requests a resync. Observe keeps nothing of the batch, and calls the observers of
// [Fleet.OnChange] when the freshness changes.
func (r Receiver) Observe(peer core.Peer, manager core.Manager, batch core.Batch, refused core.EventErrors) {
	now := time.Now()
	if r.fleet.observe(peer, manager, &batch, refused, now) {
		r.fleet.notify()
	}
}

// Refuse notes that the verifier refused the whole request of an identified runtime, and why. The
// reason is from a small fixed set. A runtime without a verified request is not noted, unless
// [Fleet.Expect] was called for it.
func (r Receiver) Refuse(runtime core.RuntimeID, manager core.Manager, reason string) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.records[key{runtime, manager}]; known != nil {
		known.refused = refusal{boundText(reason), time.Now()}
	}
}
