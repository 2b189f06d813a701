package httpserver

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"
)

// Options are the optional parts of a [Server].
type Options struct {
	// Listener is used instead of binding an address. The server closes it. Default: none.
	Listener net.Listener
	// TLS is the configuration to serve with. It is cloned. The minimum version is TLS 1.3 unless
	// it names another. A configuration that its GetConfigForClient returns must offer "h2" itself.
	// Default: plain HTTP.
	TLS *tls.Config
	// HTTP1Only disables HTTP/2. Without TLS, HTTP/2 needs prior knowledge. Default: both.
	HTTP1Only bool

	// MaxConnections bounds open connections. When it is reached, a new connection closes the
	// oldest idle one of the origin that has the most. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by origin. A handshake that waits for its client has no slot. One that runs a
	// callback of TLS has one, except VerifyConnection of a resumed session or of a server that
	// asks for no client certificate. Default: half of GOMAXPROCS, at least 1.
	MaxHandshakes int
	// MaxHandshakeBytes bounds the bytes that a TLS connection receives until the header of its
	// first request is complete. It bounds the memory of a handshake, which would otherwise be 64
	// KiB and more for each connection. Default: 128 KiB.
	MaxHandshakeBytes int
	// MaxHeaderBytes bounds the header of a request. Default: 64 KiB.
	MaxHeaderBytes int

	// ReadHeaderTimeout bounds the TLS handshake, and the header of each request. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// ReadTimeout bounds reading one request. Default: 10 s.
	ReadTimeout time.Duration
	// WriteTimeout bounds the time from the header of a request to the end of its answer. Default:
	// 20 s.
	WriteTimeout time.Duration
	// IdleTimeout bounds the time between two requests of a connection. Default: 3 min.
	IdleTimeout time.Duration
	// ShutdownTimeout is how long Serve waits for requests in flight at its end. Default: 10 s.
	ShutdownTimeout time.Duration

	// HandshakeFailed is called for each failed TLS handshake with one of the causes above, such as
	// [CauseUntrusted]. It is not called for a connection that ends before its first byte, as the
	// probe of a load balancer does, nor for one that this server closed. It may be called
	// concurrently and must not block. Default: none.
	HandshakeFailed func(cause string, remote net.Addr, err error)
	// ConnectionClosed is called for each connection that was closed for MaxConnections, with
	// [Displaced] or [NoSlot]. It may be called concurrently and must not block. Default: none.
	ConnectionClosed func(reason string)
	// Logger gets failed handshakes at warn, at most one a minute for each cause, errors of
	// accepting at the same pace, and panics of the handler. Default: discard.
	Logger *slog.Logger
}

const (
	defaultMaxConnections = 16 << 10
	defaultMaxHandshake   = 128 << 10
	defaultMaxHeaderBytes = 64 << 10
	defaultReadTimeout    = 10 * time.Second
	defaultWriteTimeout   = 20 * time.Second
	defaultIdleTimeout    = 3 * time.Minute
	defaultShutdown       = 10 * time.Second
)

func (o Options) withDefaults() Options {
	o.MaxConnections = cmp.Or(o.MaxConnections, defaultMaxConnections)
	o.MaxHandshakes = cmp.Or(o.MaxHandshakes, max(runtime.GOMAXPROCS(0)/2, 1))
	o.MaxHandshakeBytes = cmp.Or(o.MaxHandshakeBytes, defaultMaxHandshake)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, defaultMaxHeaderBytes)
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, defaultReadTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, defaultWriteTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.ShutdownTimeout = cmp.Or(o.ShutdownTimeout, defaultShutdown)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))

	if o.HandshakeFailed == nil {
		o.HandshakeFailed = func(string, net.Addr, error) {}
	}

	if o.ConnectionClosed == nil {
		o.ConnectionClosed = func(string) {}
	}

	return o
}

var errNegative = errors.New("option is negative")

func (o Options) validate() error {
	return errors.Join(
		notNegative("MaxConnections", o.MaxConnections),
		notNegative("MaxHandshakes", o.MaxHandshakes),
		notNegative("MaxHandshakeBytes", o.MaxHandshakeBytes),
		notNegative("MaxHeaderBytes", o.MaxHeaderBytes),
		notNegative("ReadHeaderTimeout", o.ReadHeaderTimeout),
		notNegative("ReadTimeout", o.ReadTimeout),
		notNegative("WriteTimeout", o.WriteTimeout),
		notNegative("IdleTimeout", o.IdleTimeout),
		notNegative("ShutdownTimeout", o.ShutdownTimeout),
	)
}

func notNegative[T int | time.Duration](name string, value T) error {
	if value >= 0 {
		return nil
	}

	return fmt.Errorf("%w: Options.%s is %v, want more than 0, or 0 for the default", errNegative, name, value)
}
