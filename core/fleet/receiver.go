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

// NoteArrival takes in the numbers of a request before it is verified. Its Observe may come late,
// or never: a verifier panics, or a handler hangs. Such a gap in the numbers shows no other replica
// of the operator. NoteArrival is no sign of life, and notes nothing of a process that was not
// observed before.
func (r Receiver) NoteArrival(runtime core.RuntimeID, manager core.Manager, batch core.Batch) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()

	known := f.records[key{runtime, manager}]
	if known == nil {
		return
	}
	if p := known.replicaOf(batch.Epoch); p != nil {
		p.arrivals.noteNumbers(&batch, p.sequence)
	}
}

// Observe takes in one request that peer sent to a manager. The caller has verified the peer.
// Refused has the events that the handler did not take: they are signs of life, too. An error that
// is a [core.KeptError] means that the transport keeps the event, and the sender does not. The
// fleet then requests a resync. Observe keeps nothing of the batch, and calls the observers of
// [Fleet.OnChange] when the freshness changes.
func (r Receiver) Observe(peer core.Peer, manager core.Manager, batch core.Batch, refused core.EventErrors) {
	now := time.Now()
	if r.fleet.observeRequest(peer, manager, &batch, refused, now) {
		r.fleet.notifyObservers()
	}
}

// Refuse notes that the verifier refused the whole request of an identified runtime, and why. The
// reason is from a small fixed set. A runtime without a verified request is not noted, unless
// [Fleet.Expect] was called for it.
func (r Receiver) Refuse(runtime core.RuntimeID, manager core.Manager, reason core.Reason) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()

	if known := f.records[key{runtime, manager}]; known != nil {
		known.refused = refusal{core.Reason(boundText(string(reason))), time.Now()}
	}
}

// Revoke makes each runtime with a revoked last sender stale, with the reason "revoked", until
// another sender is observed. An intake calls it for each new list of revoked senders. It may
// be called again with the same list.
//
// The last sender counts, so that a thief with an old certificate does not make a runtime stale
// that has a new one.
func (r Receiver) Revoke(isRevoked func(core.Peer) bool) {
	if r.fleet.revokeSenders(isRevoked, time.Now()) {
		r.fleet.notifyObservers()
	}
}

func (f *Fleet) revokeSenders(isRevoked func(core.Peer) bool, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, known := range f.records {
		if known.revokeSenders(isRevoked, now) {
			changed = true
			f.reviewRecord(known, now)
		}
	}
	return changed
}
