package listener

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
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

const (
	idle int32 = iota
	starting
	serving
	stopping
)

// New returns a listener that has copied the handlers. It fails if something required is missing, a
// manager's name is invalid, or an option is out of its range. The error names all faults.
//
// The verifier may be a [core.RequestVerifier]: so [SANPinning] looks up one domain for a batch. It
// may be a [core.Validator]: New returns its error. A verifier that wraps another should be both.
func New(peers Peers, verifier core.Verifier, handlers map[core.Manager]core.Handler, opts Options) (*Listener, error) {
	opts = opts.withDefaults()
	in, err := intake.New(verifier, handlers, opts.ofIntake())
	err = errors.Join(peers.validate(opts.TLS), err, opts.validate())
	if err != nil {
		return nil, fmt.Errorf("listener: %w", err)
	}

	l := &Listener{peers: peers, verifier: verifier, intake: in, opts: opts, refusals: pacedlog.NewPace(refusalEvery)}
	l.routeAll()
	return l, nil
}

// ServeHTTP answers one request. It mounts the listener in another server, which needs timeouts,
// and room for headers of 64 KiB. With [FromTLS], chains are then verified in the first
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

// Ready returns nil while Start serves and the list of revoked senders is there, and otherwise an
// error that wraps [core.ErrNotReady]. It is for a readiness probe. It does not ask the handlers: a
// rollout waits until the new replica is ready, while the old one still leads.
func (l *Listener) Ready() error {
	switch l.state.Load() {
	case serving:
		return l.intake.RevocationsReady()
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

const wildcard = "manager"

// routeAll gives everything else to the endpoint without a version.
func (l *Listener) routeAll() {
	l.mux = http.NewServeMux()
	l.nowhere = &endpoint{Listener: l}
	l.mux.Handle("/", l.nowhere)
	for _, version := range contract.Versions() {
		pattern := strings.Replace(version.Path(wildcard), "/"+wildcard+"/", "/{"+wildcard+"}/", 1)
		l.mux.Handle(pattern, &endpoint{
			Listener: l, version: version, bodies: sync.Pool{New: func() any { return new(bytes.Buffer) }},
		})
	}
}

// isClean reports whether a mux takes the path as it is. It redirects others, which a sender of
// events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()
	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}

// Options are the optional settings of a [Listener]. The zero value is the documented default.
type Options struct {
	// Addr is the TCP address that Start binds, as host:port. It is ignored if Listener is set.
	// Default: ":8082".
	Addr string
	// Listener is an open socket that Start serves on, and closes, instead of binding Addr. It is
	// for tests and for sockets that another process has opened. Default: nil, Addr is bound.
	Listener net.Listener
	// TLS is the configuration to serve with. It is cloned. The minimum version is TLS 1.3 unless
	// it names another. A configuration that its GetConfigForClient returns must offer "h2" in
	// NextProtos itself. Default: plain HTTP, for a gateway that terminates TLS.
	TLS *tls.Config

	// MaxInFlight bounds the requests that the verifier and the handler have at the same time.
	// Further requests are answered with 503 immediately. With a Fleet, an eighth more may be with
	// the verifier only. So heartbeats are observed while all events are refused. Default: 256.
	MaxInFlight int
	// MaxConnections bounds open connections. When it is reached, a new connection closes the
	// oldest idle one of the origin that has the most. An origin is the runtime of a certificate
	// that this listener has checked, or else an address (IPv6: a /64 network). So neither a
	// gateway nor a fleet needs a limit of its own. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by address (IPv6: a /64 network), so that one address cannot delay the others. A
	// handshake that waits for its client has no slot; one that runs a callback of TLS has one.
	// Default: half of GOMAXPROCS, at least 1.
	MaxHandshakes int

	// RuntimeRate bounds the average number of events of each runtime in a second, and RuntimeBurst
	// the number in one burst. A request without events counts as one event, and so does each 16
	// KiB of a body. A sender without identity has such a share for its address (IPv6: a /64
	// network).
	//
	// Requests beyond the share are answered 429, on contracts v1 and v2 503. A batch that is
	// larger than the rest of the share is taken, and the next one waits. Defaults: 200 and 1,000,
	// so that 10,000 events take less than a minute.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds the requests of one runtime in flight. Further ones are answered as
	// those beyond RuntimeRate. Default: 16.
	RuntimeInFlight int

	// Fleet observes each request that is verified. Its resyncs are delivered to the handlers while
	// Start runs. Listeners for different managers may share one. Default: none.
	Fleet *fleet.Fleet

	// Revocations has the senders that are refused although their certificates are good. Each of
	// their requests is answered 403 with the reason "revoked". With [FromTLS], Start ends their
	// open connections within a second. [RevocationsFromFile] reads a list live, and so does
	// RevocationsFromConfigMap of adapters/controllerruntime. Default: none.
	Revocations intake.Revocations

	// HandleTimeout bounds the calls of verifier and handler for one request, with their context.
	// Default: 5 s.
	HandleTimeout time.Duration
	// ReadTimeout bounds the TLS handshake, and the reading of a request. Default: 10 s.
	ReadTimeout time.Duration
	// IdleTimeout bounds the time between two requests of a connection. Default: 11 min, which is
	// longer than two heartbeats of 5 min.
	IdleTimeout time.Duration
	// ShutdownTimeout is the time for which Start waits for requests in flight at its end.
	// Default: 10 s.
	ShutdownTimeout time.Duration

	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets starts and ends, failed handshakes at warn, at most one a minute for each cause,
	// and panics. A refused request is a line at warn with its cause, at most one in 10 min for
	// each runtime and reason, and otherwise at debug. Default: discard.
	Logger *slog.Logger
	// Hooks are called for metrics. Default: none.
	Hooks Hooks
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Addr:            ":8082",
		HandleTimeout:   5 * time.Second,
		ReadTimeout:     10 * time.Second,
		IdleTimeout:     11 * time.Minute,
		ShutdownTimeout: 10 * time.Second,
		Now:             time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			Answered:          func(hook.Answer) {},
			HandshakeFailed:   func(hook.HandshakeFailure) {},
			ConnectionDropped: func(hook.ConnectionDrop) {},
		},
	})
}

func (o Options) ofIntake() intake.Options {
	return intake.Options{
		MaxInFlight: o.MaxInFlight, RuntimeRate: o.RuntimeRate, RuntimeBurst: o.RuntimeBurst,
		RuntimeInFlight: o.RuntimeInFlight, HandleTimeout: o.HandleTimeout, Fleet: o.Fleet,
		Revocations: o.Revocations, Now: o.Now, Logger: o.Logger,
		InFlight: o.Hooks.InFlight, Measured: o.Hooks.Managers,
	}
}

func (o Options) validate() error {
	_, _, err := net.SplitHostPort(o.Addr)
	return errors.Join(
		option.Unless(o.Listener != nil || err == nil, "Options.Addr: want host:port, have %.80q", o.Addr),
		option.NotNegative("Options.MaxConnections", o.MaxConnections),
		option.NotNegative("Options.MaxHandshakes", o.MaxHandshakes),
		option.NotNegative("Options.ReadTimeout", o.ReadTimeout),
		option.NotNegative("Options.IdleTimeout", o.IdleTimeout),
		option.NotNegative("Options.ShutdownTimeout", o.ShutdownTimeout),
	)
}

// Hooks are optional callbacks. They are called concurrently and must not block. All strings are
// from small fixed sets and may be metric labels, provided that the reasons of errors of verifiers
// and handlers are. Metrics of adapters/prometheus have such hooks.
type Hooks = hook.Listener
