package controllerruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// defaultName is the default of [ListenerConfig].Name.
const defaultName = "runtime-watcher"

var (
	errNoManager = errors.New("want a controller manager, have nil")
	errNoSource  = errors.New("no controller takes its events: call SourceFor, " +
		"before the controller manager starts")
)

var (
	_ manager.Runnable               = (*Listener)(nil)
	_ manager.LeaderElectionRunnable = (*Listener)(nil)
	_ http.Handler                   = (*Listener)(nil)
)

// AddListener adds a listener to a controller manager: the server, a readiness check, the key files
// of [MutualTLS], and the log. Then call [SourceFor] for each controller that receives its events,
// before the controller manager starts.
//
// The error names the field that is missing in config. AddListener also fails if this controller
// manager already has a listener with the same name or address.
func AddListener(mgr manager.Manager, config ListenerConfig) (*Listener, error) {
	if option.IsNil(mgr) {
		return nil, fmt.Errorf("listener: %w", errNoManager)
	}

	config.Logger = cmp.Or(config.Logger, Logger(mgr.GetLogger()))

	l, err := newListener(config, mgr.Elected())
	if err != nil {
		return nil, err
	}
	if err := known.addListener(l); err != nil {
		return nil, fmt.Errorf("listener %q: %w", l.config.Name, err)
	}

	ready := func(*http.Request) error { return l.Ready() }
	err = errors.Join(mgr.Add(l), mgr.AddReadyzCheck(l.config.Name, ready))
	if err != nil {
		known.removeListener(l)
		return nil, fmt.Errorf("listener %q: %w", l.config.Name, err)
	}
	return l, nil
}

// newListener checks everything but the sources, so that a fault is an error of the set-up.
func newListener(config ListenerConfig, elected <-chan struct{}) (*Listener, error) {
	config.Name = cmp.Or(config.Name, defaultName)
	config.Logger = cmp.Or(config.Logger, defaultLogger())
	err := config.validate()
	if err != nil {
		return nil, fmt.Errorf("listener %q: %w", config.Name, err)
	}

	some := map[core.Manager]core.Handler{"some": core.HandlerFunc(nothing)}
	opts := config.listenerOptions()
	opts.Hooks.Managers = nil // The managers of the listener are not known yet.
	_, err = listener.New(config.Senders.peers, config.Verifier, some, opts)
	if err != nil {
		return nil, fmt.Errorf("listener %q: %w", config.Name, err)
	}

	if config.Fleet != nil && config.Runtimes == nil {
		config.Logger.Info("the fleet of this listener expects no runtime and forgets none: "+
			"set Runtimes together with Fleet, "+
			"or call Expect and Forget of the fleet", slog.String("listener", config.Name))
	}
	return &Listener{config: config, elected: elected, handlers: make(map[core.Manager]severalHandlers)}, nil
}

// nothing is a handler for the check of a configuration.
func nothing(context.Context, core.Delivery) error { return nil }

// Handle passes the events of a manager to a handler. Most operators call [SourceFor] instead,
// which does the same for a new source.
//
// Several handlers may receive the events of one manager. Each handler gets every event. The event
// is acknowledged when all handlers have accepted it. Otherwise it is sent again, which is harmless
// for the handlers that have accepted it.
//
// A source, or a handler that embeds a source, gets Elected, the Fleet and the name of the manager
// from the listener. Handle fails if the name is not a DNS-1123 label, or the handler is nil or a
// source of another manager. It also fails after the listener has started.
func (l *Listener) Handle(name core.Manager, handler core.Handler) error {
	if l == nil {
		return fmt.Errorf("source of manager %q: want a listener of AddListener, have nil", name)
	}
	if err := l.addHandler(name, handler); err != nil {
		return fmt.Errorf("listener %q: source of manager %q: %w", l.config.Name, name, err)
	}
	return nil
}

// addHandler adds a handler to the handlers of a manager, and attaches it if it is a source.
func (l *Listener) addHandler(name core.Manager, handler core.Handler) error {
	if _, err := core.ParseManager(string(name)); err != nil {
		return err
	}
	if option.IsNil(handler) {
		return errors.New("the handler is nil")
	}
	if other := known.deliversElsewhere(l, name); other != "" {
		return fmt.Errorf("listener %q with the same fleet already receives the events of this manager: "+
			"want another manager name, or a separate fleet for each listener", other)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.served.Load() != nil {
		return errors.New("the listener has started already: call SourceFor before the controller manager starts")
	}

	if s, ok := handler.(attachable); ok {
		if err := s.attachTo(l.attachmentOf(name)); err != nil {
			return err
		}
	}

	if len(l.handlers[name]) == 0 && l.config.Runtimes != nil {
		if err := l.config.Runtimes.Track(l.config.Fleet, name); err != nil {
			return err
		}
	}

	l.handlers[name] = append(l.handlers[name], handler)
	return nil
}

// attachmentOf returns the place of a source of a manager.
func (l *Listener) attachmentOf(name core.Manager) *attachment {
	return &attachment{
		listener: l.config.Name, manager: name, elected: l.elected, fleet: l.config.Fleet,
		isServed: func() bool { return l.served.Load() != nil },
	}
}

// endSetUp returns the server for all handlers. Later handlers are refused.
func (l *Listener) endSetUp() (*listener.Listener, error) {
	if served := l.served.Load(); served != nil {
		return served, nil
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if served := l.served.Load(); served != nil {
		return served, nil
	}
	if len(l.handlers) == 0 {
		return nil, fmt.Errorf("listener %q: %w", l.config.Name, errNoSource)
	}

	handlers := make(map[core.Manager]core.Handler, len(l.handlers))
	for name, several := range l.handlers {
		handlers[name] = several.asHandler()
	}

	served, err := listener.New(l.config.Senders.peers, l.config.Verifier, handlers, l.config.listenerOptions())
	if err != nil {
		return nil, fmt.Errorf("listener %q: %w", l.config.Name, err)
	}

	l.served.Store(served)
	return served, nil
}

// Start serves until ctx ends. A controller manager calls it. It fails if no controller has a
// source, and for the reasons for which [listener.Listener.Start] fails.
func (l *Listener) Start(ctx context.Context) error {
	defer known.removeListener(l)
	served, err := l.endSetUp()
	if err != nil {
		return err
	}

	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l.startMaterial(ctx, &beside)
	l.warnUntilStarted(ctx, &beside)

	return served.Start(ctx)
}

// startMaterial runs the key material of [MutualTLS]. A material that is started elsewhere, too,
// is only read more often.
func (l *Listener) startMaterial(ctx context.Context, beside *sync.WaitGroup) {
	material, ok := l.config.Senders.material.(manager.Runnable)
	if !ok {
		return
	}
	beside.Go(func() {
		if err := material.Start(ctx); err != nil {
			l.config.Logger.ErrorContext(ctx, "the key material is no longer read",
				slog.String("listener", l.config.Name), slog.Any("error", err))
		}
	})
}

// warnUntilStarted reports each source that no controller has started.
func (l *Listener) warnUntilStarted(ctx context.Context, beside *sync.WaitGroup) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for name, several := range l.handlers {
		for i, handler := range several {
			s, ok := handler.(attachable)
			if !ok {
				continue
			}

			logger := l.config.Logger.With(slog.String("listener", l.config.Name), slog.String("manager", string(name)),
				slog.String("source", fmt.Sprintf("%d of %d", i+1, len(several))))
			beside.Go(func() { warnUntilStarted(ctx, s, logger) })
		}
	}
}

// NeedLeaderElection returns false, so that a controller manager starts the listener on every
// replica. A replica that does not lead answers with 503 and closes the connection, so that the
// sender connects to another replica.
func (l *Listener) NeedLeaderElection() bool { return false }

// Ready returns nil while Start serves with a certificate, and otherwise an error that wraps
// [core.ErrNotReady]. It is the readiness check that [AddListener] adds. It does not ask the
// controllers, because a rollout waits until the new replica is ready, while the old replica still
// leads.
func (l *Listener) Ready() error {
	served := l.served.Load()
	if served == nil {
		return fmt.Errorf("%w: the listener is not started", core.ErrNotReady)
	}

	if material := l.config.Senders.material; material != nil {
		if _, err := material.Material(); err != nil {
			return fmt.Errorf("%w: the listener has no certificate: %w", core.ErrNotReady, err)
		}
	}
	return served.Ready()
}

// Addr returns the bound address, or nil before Start has bound it.
func (l *Listener) Addr() net.Addr {
	if served := l.served.Load(); served != nil {
		return served.Addr()
	}
	return nil
}

// ServeHTTP answers one request, as [listener.Listener.ServeHTTP] does. Use it to mount the
// listener in another server. After the first request, as after Start, Handle and SourceFor fail.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	served, err := l.endSetUp()
	if err != nil {
		l.config.Logger.ErrorContext(r.Context(), "a request was answered with 503", slog.Any("error", err))
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	served.ServeHTTP(w, r)
}
