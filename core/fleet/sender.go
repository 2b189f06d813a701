package fleet

import "github.com/runtime-watcher/runtime-watcher/core"

// sender is the sender of the last batch of a replica, or of a runtime without epochs. The replicas
// of one certificate share it.
type sender struct {
	peer    core.Peer
	revoked bool
}

// newSender returns the last sender if it is the same and not revoked.
func newSender(peer core.Peer, last *sender) *sender {
	isKnown := last != nil && peer.Fingerprint != "" && peer.Fingerprint == last.peer.Fingerprint
	if isKnown && !last.revoked {
		return last
	}

	peer.Lost = nil // The connection may be long gone.
	return &sender{peer: peer}
}

func (s *sender) isRevoked() bool { return s != nil && s.revoked }
