package listener

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Options are the optional parts of a [Listener]. The zero value is ready to use.
type Options struct {
	// Addr is the TCP address that Start binds. Default: ":8082".
	Addr string
	// Listener is what Start serves on instead of binding Addr. Start closes it.
	Listener net.Listener
	// TLS is what Start serves with; nil means plain HTTP, for a gateway that ends TLS. It is cloned. TLS 1.3 is the least version
	// unless it names another. A config that its GetConfigForClient returns must offer "h2" in NextProtos itself.
	TLS *tls.Config

	// MaxInFlight bounds how many requests are with the verifier and the handler at once; those beyond it are answered 503 at once. With
	// a Fleet, an eighth more may be with the verifier only: heartbeats are heard also while all others are refused. Default: 256.
	MaxInFlight int
	// MaxConnections bounds open connections. When it is reached, a new connection closes the
	// oldest idle one of the origin that has the most: a runtime that showed its certificate to
	// this listener, or else an address (IPv6: a /64 network). So neither a gateway nor a fleet
	// needs a limit of its own. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by address (IPv6: a /64 network), so that one address cannot delay the others. A
	// handshake that waits for its client has no slot; one that runs a callback of TLS has one.
	// Default: half of GOMAXPROCS, at least 1.
	MaxHandshakes int

	// RuntimeRate is how many requests a second each runtime may send on average, and RuntimeBurst how many at once, where a request of
	// more than 16 KiB counts as several. Those beyond it are answered 429. Defaults: 200 and 400, with which a runtime catches up on
	// 10,000 single events within a minute.
	RuntimeRate  float64
	RuntimeBurst int
	// RuntimeInFlight bounds how many requests of one runtime are in flight. Those beyond it are answered 429. Default: 16.
	RuntimeInFlight int

	// Fleet is told what is heard of each runtime, and its resyncs are handed to the handlers while Start runs. Listeners for different
	// managers may share one. Default: nobody.
	Fleet *fleet.Fleet

	// HandleTimeout bounds the calls of verifier and handler for one request, by their context. Default: 5 s.
	HandleTimeout time.Duration
	// ReadTimeout bounds the TLS handshake, and the reading of a request. Default: 10 s.
	ReadTimeout time.Duration
	// IdleTimeout is how long a connection without requests is kept. Default: 3 min.
	IdleTimeout time.Duration
	// ShutdownTimeout is how long Start waits for requests in flight when it is stopped. Default: 10 s.
	ShutdownTimeout time.Duration

	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets starts and ends, failed handshakes at warn, at most one a minute for each cause,
	// panics, and each refused request at debug level. Default: discard.
	Logger *slog.Logger
	// Hooks are called for metrics.
	Hooks Hooks
}

const (
	defaultAddr            = ":8082"
	defaultMaxInFlight     = 256
	defaultRuntimeRate     = 200
	defaultRuntimeBurst    = 400
	defaultRuntimeInFlight = 16
	defaultHandleTimeout   = 5 * time.Second
	defaultReadTimeout     = 10 * time.Second
	defaultIdleTimeout     = 3 * time.Minute
	defaultShutdownTimeout = 10 * time.Second
)

func (o Options) withDefaults() Options {
	o.Addr = cmp.Or(o.Addr, defaultAddr)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, defaultMaxInFlight)
	o.RuntimeRate = cmp.Or(o.RuntimeRate, defaultRuntimeRate)
	o.RuntimeBurst = cmp.Or(o.RuntimeBurst, defaultRuntimeBurst)
	o.RuntimeInFlight = cmp.Or(o.RuntimeInFlight, defaultRuntimeInFlight)
	o.HandleTimeout = cmp.Or(o.HandleTimeout, defaultHandleTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.ShutdownTimeout = cmp.Or(o.ShutdownTimeout, defaultShutdownTimeout)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))

	if o.Now == nil {
		o.Now = time.Now
	}

	return o
}

var errNegative = errors.New("option is negative")

func (o Options) validate() error {
	return errors.Join(
		notNegative("MaxInFlight", o.MaxInFlight),
		notNegative("MaxConnections", o.MaxConnections),
		notNegative("MaxHandshakes", o.MaxHandshakes),
		notNegative("RuntimeRate", o.RuntimeRate),
		notNegative("RuntimeBurst", o.RuntimeBurst),
		notNegative("RuntimeInFlight", o.RuntimeInFlight),
		notNegative("HandleTimeout", o.HandleTimeout),
		notNegative("ReadTimeout", o.ReadTimeout),
		notNegative("IdleTimeout", o.IdleTimeout),
		notNegative("ShutdownTimeout", o.ShutdownTimeout),
	)
}

func notNegative[T int | float64 | time.Duration](name string, value T) error {
	if value >= 0 {
		return nil
	}

	return fmt.Errorf("%w: Options.%s is %v, want more than 0, or 0 for the default", errNegative, name, value)
}
