package listener

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Relay makes each replica a gateway to the replica that leads. It forwards requests by mTLS, with
// the certificate of the runtime in the header [HeaderXFCC]. The leader checks that certificate
// again, and its answer is the answer to the runtime.
//
// Relayed requests have a port of their own, which only replicas must be able to use. A request
// that arrives there is never relayed again. A handler must implement [core.Readier]: its error
// decides that a request is relayed.
//
// All fields except Addr and Listener are required.
type Relay struct {
	// Addr is the TCP address for requests of other replicas, as host:port. It is ignored if
	// Listener is set. Default: ":8083".
	Addr string
	// Listener is an open socket that Start serves on, and closes, instead of binding Addr.
	Listener net.Listener
	// Server is the TLS configuration of that port. It must demand a client certificate.
	Server *tls.Config
	// Client returns the TLS configuration for a new connection to the leader. It has the
	// certificate of this replica, and the name to expect in that of the leader.
	Client func() (*tls.Config, error)
	// Peers identifies the runtime of a relayed request. It must be made by [FromXFCC], with a
	// [ProxyCertificate] for the names of the replicas. No runtime may have one of these names.
	Peers Peers
	// Leader returns the relay address of the replica that leads, as host:port, or "" if none is
	// known. It is called for each relayed request and must not block.
	Leader func() string
}

const defaultRelayAddr = ":8083"

var (
	errRelayIncomplete = errors.New("Options.Relay needs Server, Client, Peers and Leader")
	errRelayPeers      = errors.New("Options.Relay.Peers: want FromXFCC")
	errRelayFrom       = errors.New("peers of a relay: want FromTLSWithRoots, FromTLS or FromXFCC")
)

func validateRelay(peers Peers, r *Relay) error {
	if r == nil {
		return nil
	}
	if r.Server == nil || r.Client == nil || r.Peers.identify == nil || r.Leader == nil {
		return errRelayIncomplete
	}
	if peers.presented == nil && peers.identify != nil {
		return errRelayFrom
	}
	if !r.Peers.behindGateway {
		return errRelayPeers
	}
	return r.Peers.invalid
}

// relayRetry is the wait that a runtime is asked for while no replica leads.
const relayRetry = time.Second

// reasonNoLeader means that the request could not be relayed.
const reasonNoLeader = "no_leader"

// mustRelay reports whether another replica must answer the request.
func (x *exchange) mustRelay(manager core.Manager) bool {
	return x.relay != nil && !x.isRelay && x.intake.Ready(manager) != nil
}

// relayToLeader hands the request to the leader, and returns its answer. Without one it returns the
// answer of a replica that does not lead.
func (x *exchange) relayToLeader(peer *core.Peer, manager core.Manager) answer {
	buffer := x.bodies.get()
	defer x.bodies.put(buffer)
	if refused := x.readBody(buffer); refused.Status != 0 {
		return refused
	}

	// A slot is not for the time of a body: a few slow senders would hold all slots.
	release := x.intake.TakeSlot(x.request.Context())
	if release == nil {
		return refuse(http.StatusServiceUnavailable, reasons.Busy)
	}
	defer release()

	passed, err := x.relay.send(x, manager, buffer.Bytes())
	if err != nil {
		return x.noLeader(err)
	}
	x.relay.noteSent()
	return x.passOn(peer, passed)
}

// noLeader refuses a request that was not relayed. In an election, other replicas know no leader
// either, and a new connection would cost a handshake. If it lasts, the fault may be of this
// replica.
func (x *exchange) noLeader(err error) answer {
	a := refuse(http.StatusServiceUnavailable, reasonNoLeader)
	a.public, a.RetryAfter, a.err = reasons.NotReady, relayRetry, err
	a.closes = x.relay.noteFailed(x.request.Context(), err) > relayPatience
	return a
}

// passOn returns the answer of the leader. A refusal for the share of the runtime pauses the
// connection here, as the leader does not have it.
func (x *exchange) passOn(peer *core.Peer, passed *passedAnswer) answer {
	a := refuse(passed.status, "")
	a.passed = passed
	if passed.status == x.version.Status() {
		return a
	}
	a.Reason = passed.reason
	if a.Reason == reasons.TooFast {
		x.pause(x.intake.Pause(intake.Account{Name: string(peer.ID)}))
	}
	return a
}
