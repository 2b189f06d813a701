package listener

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Listener receives events from runtimes for one or several managers. It is an [http.Handler] for all contracts, and with Start a
// server of its own, in the shape of a controller-runtime Runnable.
type Listener struct{}

var errTODO = errors.New("TODO")

// New returns a listener. It fails when something required is missing, when a manager's name is invalid, or when an option is out of
// its range; it names everything that is wrong at once. The handlers are copied.
func New(peers PeerSource, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Listener, error) {
	return nil, errTODO
}

// ServeHTTP answers one request. Use it to mount the listener in a server of your own, or call Start.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {}

// Start binds the address, serves until ctx ends, and waits for requests in flight up to Options.ShutdownTimeout, during which new requests are
// answered 503. It returns an error when the address can not be bound, when serving fails, or when requests
// were cut off. It can be called once.
func (l *Listener) Start(ctx context.Context) error { return errTODO }

// NeedLeaderElection returns false: controller-runtime then starts the listener on every replica. One that does not lead answers 503 as
// its handler is not ready, and closes the connection, so that the sender finds the leader; a closed port would
// look like an outage.
func (l *Listener) NeedLeaderElection() bool { return false }

// Ready returns nil while Start serves, and an error that wraps [core.ErrNotReady] before and after. It is made for a readiness probe.
// It does not ask the handlers: a replica that does not lead is ready to answer so.
func (l *Listener) Ready() error { return errTODO }

// Addr returns the address that Start has bound, and nil before.
func (l *Listener) Addr() net.Addr { return nil }
