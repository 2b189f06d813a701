package listener

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Listener receives events from runtimes for one or several managers. It is an [http.Handler] for
// all contracts. With Start it is also a server, and a Runnable of controller-runtime. Its methods
// may be called concurrently.
type Listener struct {
	peers    Peers
	verifier core.Verifier
	intake   *intake.Intake
	opts     Options
	mux      *http.ServeMux
	nowhere  *endpoint // answers requests for no contract
	state    atomic.Int32
	bound    atomic.Pointer[net.Addr]
	// refusals is the pace of lines about refused requests.
	refusals *pacedlog.Pace
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
// request, one after the other. So [SANPinning] looks up one domain for a batch. If the verifier
// has a method "Validate() error", New returns that error. A verifier that wraps another should
// have both methods.
func New(peers Peers, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	in, err := intake.New(verifier, handlers, opts.ofIntake())
	err = errors.Join(peers.validate(), err, opts.validate(), peers.validateTLS(opts.TLS))
	if err != nil {
		return nil, fmt.Errorf("listener: %w", err)
	}
	if peers.checkHandshake != nil && opts.TLS != nil {
		opts.TLS = checkHandshakes(opts.TLS, peers.checkHandshake)
	}
	l := &Listener{peers: peers, verifier: verifier, intake: in, opts: opts, refusals: pacedlog.NewPace(refusalEvery)}
	l.routeAll()
	return l, nil
}

// ServeHTTP answers one request. It mounts the listener in another server, which needs timeouts,
// and room for headers of 64 KiB. With [FromTLSWithRoots], chains are then verified in the first
// request of a certificate rather than in the handshake.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isClean(r) {
		l.nowhere.ServeHTTP(w, r)
		return
	}
	l.mux.ServeHTTP(w, r)
}

// NeedLeaderElection returns false: controller-runtime then starts the listener on every replica. A
// replica that does not lead answers 503 and closes the connection, so that the sender connects to
// another one. A closed port would look like an outage.
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

// endpoint answers the requests of one contract. Without a version it answers those of no contract.
type endpoint struct {
	*Listener

	version contract.Version
	// bodies are buffers, which grow with the bytes that arrive, and not with the announced length.
	bodies sync.Pool
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := e.opts.Now()
	x := exchange{endpoint: e, request: e.observing(r)}
	a := x.answer()
	a.write(w)
	x.report(&a, e.opts.Now().Sub(started))
}

// wildcard is the name of the path segment with the manager.
const wildcard = "manager"

// routeAll routes each contract to its endpoint. The endpoint without a version gets everything
// else.
func (l *Listener) routeAll() {
	l.mux, l.nowhere = http.NewServeMux(), &endpoint{Listener: l}
	l.mux.Handle("/", l.nowhere)
	for _, version := range contract.Versions() {
		pattern := strings.Replace(version.Path(wildcard), "/"+wildcard+"/", "/{"+wildcard+"}/", 1)
		l.mux.Handle(pattern, &endpoint{Listener: l, version: version})
	}
}

// isClean reports whether a mux takes the path as it is. It redirects others, which a sender of
// events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()
	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}
