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

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// notStarted is the time after which a source without a controller is reported, and again.
const notStarted = 30 * time.Second

// errTwoTLS prevents a listener with other certificates than the caller expects.
var errTwoTLS = errors.New("MutualTLS and Options.Listener.TLS are both set: want one of them")

// checks has the readiness checks of [SetUpListener]. A controller manager replaces one by another of
// that name, and cannot be asked for it. It is known by its channel Elected, so that it can be freed.
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
		peers: listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}),
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
			return nil, errTwoTLS
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
	if _, taken := checks.LoadOrStore(check{mgr.Elected(), component}, true); taken {
		return nil, fmt.Errorf("listener component %q is set up on this controller manager already: want another name", component)
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
func warnUntilStarted(ctx context.Context, ready func() error, log *slog.Logger) error {
	starts := func(context.Context) (bool, error) {
		if ready() == nil {
			return true, nil
		}
		log.WarnContext(ctx, "no controller has started the source of events, so that each is answered 503: "+
			"pass the source to WatchesRawSource")
		return false, nil
	}
	_ = wait.PollUntilContextCancel(ctx, notStarted, false, starts) // Its error is that of ctx.
	return nil
}
