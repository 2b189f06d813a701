package listener

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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

// Listener receives events from runtimes for one or more managers. It is an [http.Handler] for all
// contracts. With Start, it is also a server and a Runnable of controller-runtime. Its methods may
// be called concurrently.
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

// refusalEvery is the time between two warnings for the same runtime and reason.
const refusalEvery = 10 * time.Minute

// New returns a listener with a copy of handlers. It fails if a required argument is missing, a
// manager's name is invalid, or an option is out of range. The error names every fault.
//
// The verifier may be a [core.RequestVerifier]: [SANPinning], for example, then looks up one domain
// for a batch. If the verifier is a [core.Validator], New returns the error of its validation. A
// verifier that wraps another verifier should implement both.
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

// NeedLeaderElection returns false, so that controller-runtime starts the listener on every
// replica. A replica that does not lead answers with 503 and closes the connection, so that the
// sender connects to another replica. A closed port would look like an outage.
func (l *Listener) NeedLeaderElection() bool { return false }

// Ready returns nil while Start serves and the list of revoked senders is available, and otherwise
// an error that wraps [core.ErrNotReady]. Use it for a readiness probe. Ready does not ask the
// handlers, because a rollout waits until the new replica is ready, while the old replica still
// leads.
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

// Addr returns the bound address, or nil before Start has bound it.
func (l *Listener) Addr() net.Addr {
	if bound := l.bound.Load(); bound != nil {
		return *bound
	}
	return nil
}

// endpoint answers the requests of one contract. Without a version, it answers requests that belong
// to no contract.
type endpoint struct {
	*Listener

	version contract.Version
	// bodies are buffers, which grow with the bytes that arrive, and not with the announced length.
	bodies sync.Pool
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

// Options are the optional settings of a [Listener]. The zero value is the documented default.
type Options struct {
	// Addr is the TCP address that Start binds, as host:port. It is ignored if Listener is set.
	// Default: ":8082".
	Addr string
	// Listener is an open socket that Start serves on and closes, instead of binding Addr. Use it
	// in tests and for sockets that another process has opened. Default: nil, Addr is bound.
	Listener net.Listener
	// TLS is the configuration to serve with. New clones it. The minimum version is TLS 1.3 unless
	// MinVersion is set. A configuration that GetConfigForClient returns must itself offer "h2" in
	// NextProtos. Default: plain HTTP, for a gateway that terminates TLS.
	TLS *tls.Config

	// MaxInFlight bounds the requests that the verifier and the handlers process at the same time.
	// Further requests are answered with 503 immediately. With a Fleet, the verifier alone may
	// process an eighth more, so that heartbeats are observed even while all events are refused.
	// Default: 256.
	MaxInFlight int
	// MaxConnections bounds the open connections. When the bound is reached, a new connection
	// closes the oldest idle connection of the origin with the most connections. An origin is the
	// runtime of a certificate that this listener has checked, or else an address (IPv6: a /64
	// network). Therefore neither a gateway nor a fleet needs a separate limit. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by address (IPv6: a /64 network), so that one address cannot delay the others. A
	// handshake occupies no slot while it waits for its client, but it does while it runs a
	// callback of TLS. Default: half of GOMAXPROCS, at least 1.
	MaxHandshakes int

	// RuntimeRate bounds the average number of events per second from each runtime, and
	// RuntimeBurst the number in one burst. A request without events counts as one event, and so
	// does each 16 KiB of a body. Senders without an identity share these limits by address (IPv6:
	// by /64 network).
	//
	// Requests beyond the share are answered with 429, or with 503 in contracts v1 and v2. A batch
	// that is larger than the rest of the share is accepted, and the next batch has to wait.
	// Defaults: 200 and 1,000, so that 10,000 events take less than a minute.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds the requests in flight from one runtime. Further requests get the same
	// answer as requests beyond RuntimeRate. Default: 16.
	RuntimeInFlight int

	// Fleet observes each verified request. While Start runs, the listener delivers the resyncs of
	// the fleet to the handlers. Listeners for different managers may share a fleet. Default: none.
	Fleet *fleet.Fleet

	// Revocations lists senders that are refused although their certificates are valid. The
	// listener answers each of their requests 403 with the reason "revoked". With [FromTLS], Start
	// closes their open connections within a second. [RevocationsFromFile] reads a list live, and
	// so does RevocationsFromConfigMap of adapters/controllerruntime. Default: none.
	Revocations intake.Revocations

	// HandleTimeout bounds the calls to the verifier and the handlers for one request, through
	// their context. Default: 5 s.
	HandleTimeout time.Duration
	// ReadTimeout bounds the TLS handshake and the reading of a request. Default: 10 s.
	ReadTimeout time.Duration
	// IdleTimeout bounds the time between two requests on a connection. Default: 11 min, which is
	// longer than two heartbeats of 5 min.
	IdleTimeout time.Duration
	// ShutdownTimeout bounds the time that Start waits for requests in flight before it returns.
	// Default: 10 s.
	ShutdownTimeout time.Duration

	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets starts, stops and panics. Failed handshakes are logged at warn, at most once a
	// minute for each cause. A refused request is logged with its cause: at warn at most once in 10
	// min for each runtime and reason, and otherwise at debug. Default: discard.
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

// Hooks are optional callbacks. They are called concurrently and must not block. All strings come
// from small fixed sets and may be metric labels, provided that verifiers and handlers also return
// errors with reasons from a small fixed set. The metrics of adapters/prometheus provide such
// hooks.
type Hooks = hook.Listener
