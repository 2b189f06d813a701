package listener

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"
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

	// MaxInFlight bounds how many requests are with the verifier and the handler at once; those beyond it are answered 503 at once.
	// Default: 256.
	MaxInFlight int
	// MaxConnections bounds the open connections; those beyond it wait to be accepted. Default: 16,384.
	MaxConnections int

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
	// Logger gets what an operator should know, and one line per refused request at debug level. Nil discards.
	Logger *slog.Logger
	// Hooks are called for metrics.
	Hooks Hooks
}
