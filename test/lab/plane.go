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
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// Fault is a fault of a [Plane].
type Fault string

// The faults of a control plane.
const (
	// Up is none.
	Up Fault = "up"
	// Refusing closes the port and the connections.
	Refusing Fault = "refused"
	// Unavailable answers 503.
	Unavailable Fault = "503"
	// TooFast answers 429 and asks for a wait of 1 s.
	TooFast Fault = "429"
	// Forbidden answers 403 and asks for a wait of 5 s. By default an agent waits for 30 s.
	Forbidden Fault = "403"
	// Hanging takes requests and never answers.
	Hanging Fault = "hanging"
	// HalfOpen discards the bytes of a connection, and sends none. Connections made before or
	// meanwhile stay like that when the fault ends.
	HalfOpen Fault = "half-open"
	// NoHandshake accepts connections and never sends a byte.
	NoHandshake Fault = "no handshake"
	// OtherCA presents a certificate that the agent does not trust.
	OtherCA Fault = "other CA"
	// OtherName presents a certificate for another name.
	OtherName Fault = "other name"
	// Slow takes 5 s for an answer.
	Slow Fault = "5 s slow"
)

const slowness = 5 * time.Second

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

	t       testing.TB
	relay   *Relay
	events  http.Handler
	source  *controllerruntime.Source[Look]
	serving map[Fault]*tls.Config
	closed  chan struct{}

	mu      sync.Mutex
	fault   Fault
	started map[Look][]time.Time
}

// PlaneOptions are the choices of [StartPlane].
type PlaneOptions struct {
	// Listener are further choices of the listener.
	Listener listener.Options
	// Handler takes the deliveries instead of a workqueue.
	Handler core.Handler
	// Reconcile is called within each reconcile. The controller gets its error or result.
	Reconcile func(ctx context.Context, look Look) (reconcile.Result, error)
	// Delivered is called for each delivery before it is enqueued.
	Delivered func(d core.Delivery)
}

// StartPlane runs a plane for managers with certificates of pki. The test ends it.
func StartPlane(t testing.TB, pki *PKI, opts PlaneOptions, managers ...core.Manager) *Plane {
	t.Helper()
	p := &Plane{
		t: t, serving: faultCertificates(t, pki),
		closed: make(chan struct{}), started: make(map[Look][]time.Time),
	}
	handler := opts.Handler
	if handler == nil {
		handler = p.startController(opts)
	}
	handlers := make(map[core.Manager]core.Handler, len(managers))
	for _, manager := range managers {
		handlers[manager] = handler
	}
	anybody := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
	pool := pki.CA.Pool()
	peers := listener.FromTLSWithRoots(func() *x509.CertPool { return pool }, listener.PeerOptions{})
	events, err := listener.New(peers, anybody, handlers, opts.Listener)
	NoError(t, err)
	p.events = events
	p.serve()
	return p
}

// faultCertificates returns the configuration of each fault that has a certificate of its own, and
// under Up that of all others.
func faultCertificates(t testing.TB, pki *PKI) map[Fault]*tls.Config {
	t.Helper()
	other := NewPKI(t)
	return map[Fault]*tls.Config{
		Up:        serverConfig(t, pki.CA, pki.CA, testpki.Options{}),
		OtherCA:   serverConfig(t, pki.CA, other.CA, testpki.Options{}),
		OtherName: serverConfig(t, pki.CA, pki.CA, testpki.Options{DNSNames: []string{"other.example.com"}}),
	}
}

// serverConfig trusts clients of one CA and presents a certificate of another.
func serverConfig(t testing.TB, clients, issuer *testpki.CA, opts testpki.Options) *tls.Config {
	t.Helper()
	leaf, err := issuer.Server("listener", opts)
	NoError(t, err)
	material, err := keys.NewMaterial(clients.PEM, leaf.CertPEM, leaf.KeyPEM)
	NoError(t, err)
	config := keys.ServerTLSConfig(material)
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

// startController returns the handler that adds deliveries to the workqueue of a running
// controller.
func (p *Plane) startController(opts PlaneOptions) core.Handler {
	p.t.Helper()
	p.source = controllerruntime.NewSource(func(_ context.Context, d core.Delivery) ([]Look, error) {
		if opts.Delivered != nil {
			opts.Delivered(d)
		}
		return []Look{{d.Runtime, d.Event.Watched}}, nil
	}, controllerruntime.SourceOptions{})
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

// Client returns c for one reconcile, as an operator uses it.
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

// StartedSince reports whether a reconcile of an object began at or after a moment.
func (p *Plane) StartedSince(look Look, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.started[look]
	return len(all) > 0 && !all[len(all)-1].Before(since)
}

func (p *Plane) serve() {
	p.t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	NoError(p.t, err)
	p.Addr = Address(FreePort(p.t))
	if p.relay, err = NewRelay(p.Addr, 0, inner.Addr().String()); err != nil {
		p.t.Fatal(err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(p.answer),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // It would be full of the faults.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"h2", "http/1.1"},
			GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				if config := p.serving[p.now()]; config != nil {
					return config.GetConfigForClient(hello)
				}
				return p.serving[Up].GetConfigForClient(hello)
			},
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(inner, "", "") }()
	p.t.Cleanup(func() {
		close(p.closed)
		p.relay.Close()
		_ = server.Close() // The reason of its end counts.
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			p.t.Errorf("plane: %v", err)
		}
	})
}

func (p *Plane) now() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

// Set lets a fault begin, and the one before end.
func (p *Plane) Set(fault Fault) {
	p.mu.Lock()
	before := p.fault
	p.fault = fault
	p.mu.Unlock()
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

// answer is that of a listener, unless a fault comes before it.
func (p *Plane) answer(w http.ResponseWriter, r *http.Request) {
	switch fault := p.now(); fault {
	case Unavailable:
		w.WriteHeader(http.StatusServiceUnavailable)
	case TooFast:
		w.Header().Set("Retry-After", strconv.Itoa(1))
		w.WriteHeader(http.StatusTooManyRequests)
	case Forbidden:
		w.Header().Set("Retry-After", "5")
		w.WriteHeader(http.StatusForbidden)
	case Hanging:
		p.wait(r.Context(), time.Hour)
	case Slow:
		p.wait(r.Context(), slowness)
		p.events.ServeHTTP(w, r)
	default:
		p.events.ServeHTTP(w, r)
	}
}

// wait waits. It ends early when the sender gives up, or the test ends.
func (p *Plane) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.closed:
	}
}
