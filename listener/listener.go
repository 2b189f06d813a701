package listener

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener receives events from runtimes for one or several managers. It is an [http.Handler] for
// all contracts. With Start it is also a server, and a Runnable of controller-runtime. Its methods
// may be called concurrently.
type Listener struct {
	peers    Peers
	verifier core.Verifier
	handlers map[core.Manager]core.Handler
	opts     Options

	routes       *routes // of runtimes and gateways
	relayed      *routes // of other replicas; nil without Options.Relay
	relay        *relayClient
	slots        chan struct{}
	observeSlots chan struct{} // for requests that are only observed, or relayed without a slot
	shares       *shares
	state        atomic.Int32
	bound        atomic.Pointer[net.Addr]
}

// The states of a listener, in their order.
const (
	idle int32 = iota
	starting
	serving
	stopping
)

// New returns a listener that has copied the handlers. It fails if something required is missing, a
// manager's name is invalid, or an option is out of its range. The error names all faults.
//
// If the verifier has a method "ForRequest() core.Verifier", its result verifies the events of one
// request, one after the other. So [SANPinning] looks up one domain for a batch. A verifier that
// wraps another should have that method, too.
func New(peers Peers, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Listener, error) {
	if err := errors.Join(
		validatePeers(peers), validateVerifier(verifier), validateHandlers(handlers),
		opts.validate(), validateRelay(peers, opts.Relay),
	); err != nil {
		return nil, fmt.Errorf("listener: %w", err)
	}

	opts = opts.withDefaults()
	if checker, ok := peers.(handshakeChecker); ok && opts.TLS != nil {
		opts.TLS = checkHandshakes(opts.TLS, checker)
	}

	l := &Listener{
		peers:        peers,
		verifier:     verifier,
		handlers:     maps.Clone(handlers),
		opts:         opts,
		slots:        make(chan struct{}, opts.MaxInFlight),
		observeSlots: make(chan struct{}, max(opts.MaxInFlight/perObserveSlot, 1)),
		shares:       newShares(opts.RuntimeRate, opts.RuntimeBurst, opts.RuntimeInFlight),
	}
	l.routes = l.newRoutes(peers, false)
	if opts.Relay != nil {
		l.relay = newRelayClient(peers, opts)
		l.relayed = l.newRoutes(opts.Relay.Peers, true)
	}

	return l, nil
}

var (
	errPeersMissing   = errors.New("peers are nil: want FromTLSWithRoots, FromTLS or FromXFCC")
	errHandlerMissing = errors.New("handler is nil")
	errNoHandlers     = errors.New("there is no handler: want one for each manager")
)

func validatePeers(peers Peers) error {
	if peers == nil {
		return errPeersMissing
	}
	return validate(peers)
}

func validateHandlers(handlers map[core.Manager]core.Handler) error {
	if len(handlers) == 0 {
		return errNoHandlers
	}
	var invalid []error
	for _, manager := range slices.Sorted(maps.Keys(handlers)) {
		if _, err := core.ParseManager(string(manager)); err != nil {
			invalid = append(invalid, err)
		}
		if handlers[manager] == nil {
			invalid = append(invalid, fmt.Errorf("%w: that of manager %q", errHandlerMissing, manager))
		}
	}
	return errors.Join(invalid...)
}

// ServeHTTP answers one request. It mounts the listener in another server, which needs timeouts,
// and room for headers of 64 KiB. With [FromTLSWithRoots], chains are then verified in the first
// request of a certificate rather than in the handshake.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.routes.ServeHTTP(w, r)
}

// NeedLeaderElection returns false: controller-runtime then starts the listener on every replica. A
// replica that does not lead relays requests to the one that leads, if [Options].Relay is set.
// Otherwise it answers 503 and closes the connection, so that the sender connects to another one. A
// closed port would look like an outage.
func (l *Listener) NeedLeaderElection() bool { return false }

// Ready returns nil while Start serves, and otherwise an error that wraps [core.ErrNotReady]. It is
// for a readiness probe. It does not ask the handlers: a rollout waits until the new replica is
// ready, while the old one still leads.
func (l *Listener) Ready() error {
	switch l.state.Load() {
	case serving:
		return nil
	case stopping:
		return fmt.Errorf("%w: the listener is shutting down", core.ErrNotReady)
	default:
		return fmt.Errorf("%w: the listener is not started", core.ErrNotReady)
	}
}

// Addr returns the bound address, and nil before Start has bound it.
func (l *Listener) Addr() net.Addr {
	if bound := l.bound.Load(); bound != nil {
		return *bound
	}
	return nil
}

// needsTLS reports whether peers are those of connections by runtimes.
func needsTLS(peers Peers) bool {
	_, needed := peers.(interface{ needsTLS() })
	return needed
}
