package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Receiver is the side of a [Fleet] to which receivers, such as a listener or a consumer, report
// requests. An operator creates the Fleet and passes it to its receivers. Only a custom transport
// needs a Receiver, and package intake uses it for that purpose. The methods may be called
// concurrently.
type Receiver struct{ fleet *Fleet }

// Receiver returns the side of the fleet to which receivers report requests.
func (f *Fleet) Receiver() Receiver { return Receiver{f} }

// NoteArrival notes the numbers of a request before the request is verified. Observe may be called
// late or not at all, for example if a verifier panics or a handler hangs. Such a gap in the
// numbers does not mean that another replica of the operator received requests. NoteArrival does
// not count as a sign of life. It ignores a process that was not observed before.
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

// Observe notes one request that peer sent to a manager. The caller must have verified the peer.
// The argument refused contains the events that the handler did not accept: they are also signs of
// life. An error that is a [core.KeptError] means that the transport keeps the event and the sender
// does not. The fleet then requests a resync. Observe keeps no reference to the batch. If the
// freshness changes, Observe calls the observers of [Fleet.OnChange].
func (r Receiver) Observe(peer core.Peer, manager core.Manager, batch core.Batch, refused core.EventErrors) {
	now := time.Now()
	if r.fleet.observeRequest(peer, manager, &batch, refused, now) {
		r.fleet.notifyObservers()
	}
}

// Refuse notes that the verifier refused the whole request of an identified runtime, and why. The
// reason must come from a small fixed set. Refuse ignores a runtime without a verified request,
// unless [Fleet.Expect] was called for the runtime.
func (r Receiver) Refuse(runtime core.RuntimeID, manager core.Manager, reason core.Reason) {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()

	if known := f.records[key{runtime, manager}]; known != nil {
		known.lastRefusal = refusal{core.Reason(boundText(string(reason))), time.Now()}
	}
}

// Revoke makes each runtime with a revoked last sender stale, with the reason "revoked", until
// another sender is observed. An intake calls it for each new list of revoked senders. It may
// be called again with the same list.
//
// The last sender counts, so that a thief with an old certificate cannot make a runtime stale that
// has a new certificate.
func (r Receiver) Revoke(isRevoked func(core.Peer) bool) {
	if r.fleet.revokeSenders(isRevoked, time.Now()) {
		r.fleet.notifyObservers()
	}
}

// revokeSenders reviews the records of revoked senders immediately. It reports whether it found a
// sender that was not known as revoked.
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
