package listener

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener receives events from runtimes for one or several managers. It is an [http.Handler] for all contracts, and with Start a
// server of its own, in the shape of a controller-runtime Runnable. All methods may be called concurrently.
type Listener struct {
	peers    PeerSource
	verifier core.Verifier
	handlers map[core.Manager]core.Handler
	opts     Options

	mux          *http.ServeMux
	nowhere      *endpoint // answers requests for no contract
	slots        chan struct{}
	observeSlots chan struct{} // for requests that are only observed
	shares       *shares
	state        atomic.Int32
	bound        atomic.Pointer[net.Addr]
}

// The life of a listener. It never goes back.
const (
	idle int32 = iota
	starting
	serving
	stopping
)

// perObserveSlot is how many slots come with one more for a request that is only observed.
const perObserveSlot = 8

// New returns a listener. It fails when something required is missing, when a manager's name is invalid, or when an option is out of
// its range; it names everything that is wrong at once. The handlers are copied.
func New(peers PeerSource, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Listener, error) {
	if err := errors.Join(
		validatePeers(peers), validateVerifier(verifier), validateHandlers(handlers), opts.validate(),
	); err != nil {
		return nil, fmt.Errorf("listener can not be built: %w", err)
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
	l.nowhere = &endpoint{Listener: l}
	l.mux = l.newMux()

	return l, nil
}

var (
	errPeersMissing   = errors.New("source of peers is nil: want FromTLS, FromTLSWithRoots or FromXFCC")
	errHandlerMissing = errors.New("handler is nil")
	errNoHandlers     = errors.New("there is no handler: want one for each manager")
)

func validatePeers(peers PeerSource) error {
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

	for manager, handler := range handlers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			invalid = append(invalid, err)
		}

		if handler == nil {
			invalid = append(invalid, fmt.Errorf("%w: that of manager %q", errHandlerMissing, manager))
		}
	}

	return errors.Join(invalid...)
}

// ServeHTTP answers one request. Use it to mount the listener in a server of your own, or call Start. A server of your own needs
// what Start brings: timeouts, and room for headers of 64 KiB.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isClean(r) {
		l.nowhere.ServeHTTP(w, r)

		return
	}

	l.mux.ServeHTTP(w, r)
}

// NeedLeaderElection returns false: controller-runtime then starts the listener on every replica. One that does not lead answers 503 as
// its handler is not ready, and closes the connection, so that the sender finds the leader; a closed port would
// look like an outage.
func (l *Listener) NeedLeaderElection() bool { return false }

// Ready returns nil while Start serves, and an error that wraps [core.ErrNotReady] before and after. It is made for a readiness probe.
// It does not ask the handlers: a replica that does not lead is ready to say so. If it were not, a rollout that waits for
// the new replica to be ready, while the old one leads, would wait for ever.
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

// Addr returns the address that Start has bound, and nil before.
func (l *Listener) Addr() net.Addr {
	if bound := l.bound.Load(); bound != nil {
		return *bound
	}

	return nil
}

// needsTLS reports whether runtimes are connected to the listener itself.
func (l *Listener) needsTLS() bool {
	_, needed := l.peers.(interface{ needsTLS() })

	return needed
}

// takeSlot takes a slot for the handler, if there is one.
func (l *Listener) takeSlot() bool {
	select {
	case l.slots <- struct{}{}:
		l.countInFlight(1)

		return true
	default:
		return false
	}
}

func (l *Listener) releaseSlot() {
	l.countInFlight(-1)
	<-l.slots
}

func (l *Listener) countInFlight(delta int) {
	if l.opts.Hooks.InFlight != nil {
		l.opts.Hooks.InFlight(delta)
	}
}
