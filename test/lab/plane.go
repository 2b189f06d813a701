package lab

import (
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
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
	// Verifier decides about events. Default: it takes those of any certificate of the PKI.
	Verifier core.Verifier
	// Handler takes the deliveries instead of a workqueue.
	Handler core.Handler
	// Reconcile is called within each reconcile. The controller gets its error or result.
	Reconcile func(ctx context.Context, look Look) (reconcile.Result, error)
	// Delivered is called for each delivery before it is enqueued.
	Delivered func(d core.Delivery)
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
	peers := listener.FromTLSWithRoots(func() *x509.CertPool { return pool }, listener.PeerOptions{})
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

// Set lets a fault begin, and the one before end.
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
