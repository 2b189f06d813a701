package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Look is the request of a reconcile of a [Plane]: one object of one runtime, or the whole runtime
// when Object is empty.
type Look struct {
	Runtime core.RuntimeID
	Object  types.NamespacedName
}

// Plane is the end of the path in the control plane, without an API server. Events of a real
// listener go through a real workqueue into reconciles. Its [Fault] can be changed at any moment. It
// keeps its port while it refuses.
type Plane struct {
	Addr string

	t      testing.TB
	relay  *Relay
	front  *Front
	source *controllerruntime.Source[Look]

	mu      sync.Mutex
	started map[Look][]time.Time
}

// PlaneOptions are the choices of [StartPlane].
type PlaneOptions struct {
	// Listener are further choices of the listener.
	Listener listener.Options
	// Verifier decides about events. Default: events with any certificate of the PKI are accepted.
	Verifier core.Verifier
	// Handler receives the deliveries instead of a workqueue.
	Handler core.Handler
	// Reconcile is called within each reconcile. The controller gets its error or result.
	Reconcile func(ctx context.Context, look Look) (reconcile.Result, error)
	// Delivered is called for each delivery before it is enqueued.
	Delivered func(d core.Delivery)
	// Handled is the hook of the source.
	Handled func(h hook.Handled)
}

// Pinning is SAN pinning. Each runtime is registered with its [RuntimeDomain].
func Pinning() core.Verifier {
	return listener.SANPinning(listener.DomainsFunc(
		func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
			return RuntimeDomain(runtime), nil
		}))
}

// StartPlane runs a plane for managers with certificates of pki. The test ends it.
func StartPlane(t testing.TB, pki *PKI, opts PlaneOptions, managers ...core.Manager) *Plane {
	t.Helper()

	p := &Plane{t: t, Addr: Address(FreePort(t)), started: make(map[Look][]time.Time)}
	handler := opts.Handler
	if handler == nil {
		handler = p.startController(opts)
	}

	handlers := make(map[core.Manager]core.Handler, len(managers))
	for _, manager := range managers {
		handlers[manager] = handler
	}

	verifier := opts.Verifier
	if verifier == nil {
		verifier = listener.InsecureAllowAll()
	}

	pool := pki.CA.Pool()
	peers := listener.FromTLS(func() *x509.CertPool { return pool }, listener.PeerOptions{})
	p.front = StartFront(t, pki, Must(listener.New(peers, verifier, handlers, opts.Listener)))
	p.relay = Must(NewRelay(p.Addr, 0, p.front.Addr))
	t.Cleanup(p.relay.Close)

	return p
}

// startController returns the handler that adds deliveries to the workqueue of a running
// controller.
func (p *Plane) startController(opts PlaneOptions) core.Handler {
	p.t.Helper()

	p.source = controllerruntime.NewSource(func(_ context.Context, d core.Delivery) ([]Look, error) {
		if opts.Delivered != nil {
			opts.Delivered(d)
		}
		return []Look{{d.Runtime, d.Event.Watched}}, nil
	}, controllerruntime.SourceOptions{Handled: opts.Handled})

	looks, err := controller.NewTypedUnmanaged("plane", controller.TypedOptions[Look]{
		SkipNameValidation:      new(true),
		MaxConcurrentReconciles: 4,
		Reconciler: reconcile.TypedFunc[Look](func(ctx context.Context, look Look) (reconcile.Result, error) {
			p.start(look)
			if opts.Reconcile == nil {
				return reconcile.Result{}, nil
			}
			return opts.Reconcile(ctx, look)
		}),
	})
	if err == nil {
		err = looks.Watch(p.source)
	}

	NoError(p.t, err)
	Run(p.t, "controller of the plane", looks.Start)
	return p.source
}

// Client wraps c for one reconcile, as an operator does.
func (p *Plane) Client(look Look, c client.Client) client.Client {
	return p.source.Client(look, look.Runtime, c)
}

func (p *Plane) start(look Look) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started[look] = append(p.started[look], time.Now())
}

// Started returns when each reconcile of an object began.
func (p *Plane) Started(look Look) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.started[look])
}

// Set begins a fault, and ends the previous fault.
func (p *Plane) Set(fault Fault) {
	before, _ := p.front.now()
	p.front.Set(fault, 0)
	p.relay.Hold(fault == NoHandshake)
	p.relay.FreezeNew(fault == HalfOpen)

	switch {
	case fault == HalfOpen:
		p.relay.Freeze()
	case fault == Refusing:
		p.relay.Refuse()
		return
	case fault == NoHandshake, fault == OtherCA, fault == OtherName, before == NoHandshake:
		p.relay.Cut()
	}

	if err := p.relay.Open(); err != nil {
		p.t.Errorf("plane: %v", err)
	}
}

// Fault is a fault of a control plane.
type Fault string

// The faults of a [Plane] and of a [Front].
const (
	// Up means that there is no fault.
	Up Fault = "up"
	// Refusing closes the port and the connections.
	Refusing Fault = "refused"
	// Unavailable answers 503.
	Unavailable Fault = "503"
	// TooFast answers 429.
	TooFast Fault = "429"
	// Forbidden answers 403.
	Forbidden Fault = "403"
	// Hanging accepts requests and never answers.
	Hanging Fault = "hanging"
	// HalfOpen discards the bytes of a connection, and sends none. Connections that exist at the
	// end of the fault stay half open.
	HalfOpen Fault = "half-open"
	// NoHandshake accepts connections and never sends a byte.
	NoHandshake Fault = "no handshake"
	// OtherCA presents a certificate that the agent does not trust.
	OtherCA Fault = "other CA"
	// OtherName presents a certificate for another name.
	OtherName Fault = "other name"
)

// Front is an HTTPS server for runtimes, with the faults of its answers and of its certificate. The
// relay in front of it has the faults of connections.
type Front struct {
	Addr string

	handler http.Handler
	serving map[Fault]*tls.Config

	mu    sync.Mutex
	fault Fault
	wait  int
}

// StartFront serves a handler with certificates of pki. The test ends it.
func StartFront(t testing.TB, pki *PKI, handler http.Handler) *Front {
	t.Helper()

	inner := Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	f := &Front{Addr: inner.Addr().String(), handler: handler, serving: faultCertificates(t, pki)}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{
		Handler:           http.HandlerFunc(f.answer),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // It would be full of the faults.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2", "http/1.1"},
			GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				fault, _ := f.now()
				if config := f.serving[fault]; config != nil {
					return config.GetConfigForClient(hello)
				}
				return f.serving[Up].GetConfigForClient(hello)
			},
		},
	}

	Run(t, "front", func(context.Context) error {
		if err := server.ServeTLS(inner, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})

	t.Cleanup(func() {
		cancel()           // Requests that hang end with it.
		_ = server.Close() // The reason of its end counts.
	})
	return f
}

// faultCertificates returns the configuration of each fault that has its own certificate, and under
// Up the configuration of all other faults.
func faultCertificates(t testing.TB, pki *PKI) map[Fault]*tls.Config {
	t.Helper()
	other := NewPKI(t)
	return map[Fault]*tls.Config{
		Up:        serverConfig(pki.CA, pki.CA, testpki.Options{}),
		OtherCA:   serverConfig(pki.CA, other.CA, testpki.Options{}),
		OtherName: serverConfig(pki.CA, pki.CA, testpki.Options{DNSNames: []string{"other.example.com"}}),
	}
}

// serverConfig trusts clients of one CA and presents a certificate of another.
func serverConfig(clients, issuer *testpki.CA, opts testpki.Options) *tls.Config {
	config := keys.ServerTLSConfig(Material(Must(issuer.Server("listener", opts)), clients))
	choose := config.GetConfigForClient
	// Else a session of the right certificate could be resumed.
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		if err != nil {
			return nil, err
		}

		chosen = chosen.Clone()
		chosen.SessionTicketsDisabled = true
		return chosen, nil
	}

	return config
}

func (f *Front) now() (fault Fault, wait int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault, f.wait
}

// Set begins a fault, and ends the previous fault. Answers ask for a wait of wait seconds, 0 for no
// wait.
func (f *Front) Set(fault Fault, wait int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
	f.wait = wait
}

// answer calls the handler, unless a fault decides the answer.
func (f *Front) answer(w http.ResponseWriter, r *http.Request) {
	fault, wait := f.now()
	status := map[Fault]int{
		Unavailable: http.StatusServiceUnavailable, TooFast: http.StatusTooManyRequests, Forbidden: http.StatusForbidden,
	}[fault]

	switch {
	case fault == Hanging:
		<-r.Context().Done() // The sender gives up, or the test ends.
	case status == 0:
		f.handler.ServeHTTP(w, r)
	default:
		if wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(wait))
		}
		w.WriteHeader(status)
	}
}
