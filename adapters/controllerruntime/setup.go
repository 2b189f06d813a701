package controllerruntime

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

// notStarted is the time after which a source without a controller is reported, and again.
const notStarted = 30 * time.Second

// checks has the readiness checks of [SetUpListener]. A controller manager replaces one by another
// of that name, and cannot be asked for it. It is known by its channel Elected, so that it can be
// freed.
var checks sync.Map

type check struct {
	elected <-chan struct{}
	name    string
}

// Senders decides how runtimes prove their identity. Make it with [MutualTLS] or [BehindGateway].
type Senders struct {
	peers    listener.Peers
	tls      *tls.Config
	material keys.Source
}

// MutualTLS is for runtimes that connect to the operator itself. The server shows the certificate
// of material, and demands a client certificate of its CAs. Both are read at each handshake, and
// the CAs at each request, so that a rotation needs no restart. [SetUpListener] starts
// [keys.Files]. Any other source that must be started is added to the controller manager, too.
func MutualTLS(material keys.Source) Senders {
	return Senders{
		peers: listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		tls:   keys.ServerTLSConfig(material), material: material,
	}
}

// BehindGateway is for a gateway that terminates TLS, with peers of [listener.FromXFCC]. The
// listener serves plain HTTP.
func BehindGateway(peers listener.Peers) Senders { return Senders{peers: peers} }

// SetUpListener is [RegisterListenerComponent] with all that an operator needs beside it. It adds
// the listener and a readiness check with the name of component to mgr. It also adds a warning for
// a source that no controller has started after 30 s. Logs go to mgr.GetLogger(), unless opts name
// another logger. A replica takes events only while it leads. Pass the source to WatchesRawSource.
// It fails for a second listener of that component on mgr.
func SetUpListener[request comparable](
	mgr manager.Manager, addr, component string, senders Senders, verify core.Verifier, mapFunc MapFunc[request],
	opts ComponentOptions,
) (*Source[request], error) {
	if senders.tls != nil {
		if opts.Listener.TLS != nil {
			return nil, errors.New("MutualTLS and Options.Listener.TLS are both set: want one of them")
		}
		opts.Listener.TLS = senders.tls
	}
	logger := Logger(mgr.GetLogger())
	opts.Listener.Logger = cmp.Or(opts.Listener.Logger, logger)
	opts.Source.Logger = cmp.Or(opts.Source.Logger, logger)
	if opts.Source.Elected == nil {
		opts.Source.Elected = mgr.Elected()
	}
	events, source, err := RegisterListenerComponent(addr, component, senders.peers, verify, mapFunc, opts)
	if err != nil {
		return nil, err
	}
	elected := mgr.Elected()
	if _, taken := checks.LoadOrStore(check{elected, component}, true); taken && elected != nil {
		return nil, fmt.Errorf("listener component %q is set up on this controller manager already: "+
			"want another name", component)
	}
	started := manager.RunnableFunc(func(ctx context.Context) error {
		return warnUntilStarted(ctx, source.Ready, logger.With(slog.String("component", component)))
	})
	ready := func(*http.Request) error { return events.Ready() }
	if files, ok := senders.material.(*keys.Files); ok { // A second Start does no harm.
		err = mgr.Add(files)
	}
	return source, errors.Join(err, mgr.Add(events), mgr.Add(started), mgr.AddReadyzCheck(component, ready))
}

// warnUntilStarted runs on the replica that leads, where the controller should have started.
func warnUntilStarted(ctx context.Context, ready func() error, logger *slog.Logger) error {
	starts := func(context.Context) (bool, error) {
		if ready() == nil {
			return true, nil
		}
		logger.WarnContext(ctx, "no controller has started the source of events, so that each is answered 503: "+
			"pass the source to WatchesRawSource")
		return false, nil
	}
	_ = wait.PollUntilContextCancel(ctx, notStarted, false, starts) // Its error is that of ctx.
	return nil
}

// ComponentOptions are the optional settings of [RegisterListenerComponent]. The zero value serves
// plain HTTP, for a gateway that terminates TLS.
type ComponentOptions struct {
	// Listener has the settings of the listener. Its Addr must be empty or equal to addr. Native
	// mTLS needs its TLS, which [MutualTLS] sets. With a Fleet, the source follows it, as
	// [Source.Follow] does. The default of its Logger is ctrl.Log. A Fleet has a Logger of its own,
	// which discards by default.
	Listener listener.Options
	// Source has the settings of the source.
	Source SourceOptions
}

// RegisterListenerComponent returns a listener for an operator, to be passed to mgr.Add, and the
// source of its events, to be passed to WatchesRawSource. Nothing runs until the controller manager
// starts.
//
// addr is host:port, and "" means ":8082". component is the name of the operator: the
// [core.Manager] of its watches. peers identifies the sender of an event. verify decides whether
// the sender may trigger the event. mapFunc turns the event into requests. It fails if one of them
// is missing, or component is not a DNS-1123 label.
//
// The function of that name in Kyma's listener differs in two points. Here peers has no default,
// because a wrong one would accept every sender. mapFunc is here and not in an event handler,
// because its error decides whether the event is acknowledged.
//
// The listener runs on every replica of the operator. A replica without a running controller, such
// as one that does not lead, answers that it is not ready. The sender then tries another replica.
func RegisterListenerComponent[request comparable](
	addr, component string, peers listener.Peers, verify core.Verifier, mapFunc MapFunc[request],
	opts ComponentOptions,
) (*listener.Listener, *Source[request], error) {
	name, err := core.ParseManager(component)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component: %w", err)
	}
	if mapFunc == nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", name, errNoMapFunc)
	}
	if addr != "" && opts.Listener.Addr != "" && addr != opts.Listener.Addr {
		return nil, nil, fmt.Errorf("listener component %s: addr and Options.Listener.Addr differ: "+
			"want one of them, have %q and %q", name, addr, opts.Listener.Addr)
	}

	source := NewSource(mapFunc, opts.Source)
	opts.Listener.Addr = cmp.Or(addr, opts.Listener.Addr)
	opts.Listener.Logger = cmp.Or(opts.Listener.Logger, defaultLogger())
	events, err := listener.New(peers, verify, map[core.Manager]core.Handler{name: source}, opts.Listener)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", name, err)
	}
	if opts.Listener.Fleet != nil {
		source.Follow(opts.Listener.Fleet, name)
	}
	return events, source, nil
}

// defaultLogger writes to the logger that an operator gives to controller-runtime, ctrl.Log, which
// is also the default of its controller manager.
func defaultLogger() *slog.Logger { return Logger(log.Log) }

// Logger returns a logger that writes to that of an operator, such as mgr.GetLogger() or ctrl.Log.
// Debug lines need verbosity 4 there (see [logr.ToSlogHandler]).
func Logger(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }

// BrowserFilter lets a browser log in at a FilterProvider of [server.Options] that checks bearer
// tokens, such as filters.WithAuthenticationAndAuthorization of controller-runtime. The browser
// asks for a password, which is the token, for example of `kubectl create token`. Requests that
// pass are authenticated for [statuspage.FleetHandler] among the extra handlers. BrowserFilter
// panics if provider is nil.
func BrowserFilter(
	provider func(*rest.Config, *http.Client) (server.Filter, error),
) func(*rest.Config, *http.Client) (server.Filter, error) {
	if provider == nil {
		panic("controllerruntime: provider of a filter is nil")
	}
	return func(config *rest.Config, client *http.Client) (server.Filter, error) {
		filter, err := provider(config, client)
		if err != nil {
			return nil, err
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			filtered, err := filter(log, statuspage.Authenticated(handler))
			if err != nil {
				return nil, err
			}
			return statuspage.BrowserLogin(filtered), nil
		}, nil
	}
}
