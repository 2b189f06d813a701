package controllerruntime

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// ListenerConfig contains everything that a listener of an operator needs. Senders and Verifier are
// required. The zero value of each other field is its documented default.
type ListenerConfig struct {
	// Name is the name of the readiness check and identifies the listener in errors and in the log.
	// A second listener of the same controller manager needs a different name. Default:
	// "runtime-watcher".
	Name string
	// Addr is the TCP address, as host:port. Default: ":8082".
	Addr string
	// Senders decides how runtimes prove their identity. There is no default, because a wrong
	// default would admit every sender.
	Senders Senders
	// Verifier decides whether a runtime may trigger an event. There is no default.
	Verifier core.Verifier
	// Fleet observes the freshness of each runtime. Each source follows the Fleet, as
	// [Source.Follow] does. A Fleet has its own Logger, which discards by default. Default: none.
	Fleet *fleet.Fleet
	// Runtimes finds the objects of the runtimes. Fleet then expects each of these runtimes, for
	// each manager of the listener, and forgets a runtime when its object is deleted, as
	// [Runtimes.Track] does. Runtimes requires a Fleet. Without Runtimes, the operator must call
	// Expect and Forget of the Fleet. Default: none.
	Runtimes *Runtimes
	// Logger gets the lines of the listener and of its sources. Default: mgr.GetLogger(), or
	// ctrl.Log for [RegisterListenerComponent].
	Logger *slog.Logger
	// Options are further settings of the listener. Its Addr, Fleet and Logger must be empty: use
	// the fields above.
	Options listener.Options
}

var errTwoTLS = errors.New("MutualTLS and Options.TLS are both set: want one of them")

func (c *ListenerConfig) validate() error {
	return errors.Join(
		option.Unless(c.Options.Addr == "", "Options.Addr is set: want Addr instead"),
		option.Unless(c.Options.Fleet == nil, "Options.Fleet is set: want Fleet instead"),
		option.Unless(c.Options.Logger == nil, "Options.Logger is set: want Logger instead"),
		option.Unless(c.Runtimes == nil || c.Fleet != nil, "Runtimes is set without Fleet: want both or neither"),
		option.Unless(c.Senders.tls == nil || c.Options.TLS == nil, "%w", errTwoTLS),
	)
}

// listenerOptions returns the options of the HTTP server.
func (c *ListenerConfig) listenerOptions() listener.Options {
	opts := c.Options
	opts.Addr = c.Addr
	opts.Fleet = c.Fleet
	opts.Logger = c.Logger
	opts.TLS = cmp.Or(c.Senders.tls, opts.TLS)
	return opts
}

// Listener receives the events of runtimes for the controllers of one operator. Make it with
// [AddListener], and its sources with [SourceFor]. Its methods may be called concurrently.
//
// The listener runs on every replica of the operator. A replica without a running controller, such
// as one that does not lead, answers that it is not ready. The sender then tries another replica.
type Listener struct {
	config ListenerConfig
	// elected is the Elected channel of the controller manager, nil if it is not known.
	elected <-chan struct{}
	// served is nil until the set-up ends, at Start or at the first request.
	served atomic.Pointer[listener.Listener]

	// mu protects the handlers of each manager until the set-up ends.
	mu       sync.Mutex
	handlers map[core.Manager]severalHandlers
}

// servesManager reports whether the listener has a handler for the manager.
func (l *Listener) servesManager(name core.Manager) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.handlers[name]) > 0
}
