// Package httpserver is an HTTP server for ports that untrusted clients can reach. It bounds open
// connections and concurrent TLS handshakes. It shares connections and handshakes fairly between
// the origins, and reports each failed handshake with its cause.
//
// The origin of a connection is its remote IPv4 address or IPv6 /64 network, because one host may
// use any address in such a network. [SetOrigin] replaces it by a name.
package httpserver

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// The names of protocols in ALPN.
const protoHTTP2, protoHTTP1 = "h2", "http/1.1"

// Server is an HTTP server that is bound to its address. Create one with [Bind].
type Server struct {
	listener net.Listener
	http     *http.Server
	opts     Options
	limiter  *limiter
	queue    *fairQueue
	log      *slog.Logger // paced
	// open counts connections with callbacks to come.
	open sync.WaitGroup
}

// Options are the optional settings of a [Server]. The zero value is the documented default.
type Options struct {
	// Listener is used instead of binding an address. The server closes it. Default: none.
	Listener net.Listener
	// TLS is the configuration to serve with. It is cloned. The minimum version is TLS 1.3 unless
	// TLS sets another version. A configuration that its GetConfigForClient returns must offer "h2"
	// itself. Default: plain HTTP.
	TLS *tls.Config
	// HTTP1Only disables HTTP/2. Without TLS, HTTP/2 needs prior knowledge. Default: HTTP/1.1 and
	// HTTP/2.
	HTTP1Only bool

	// MaxConnections bounds open connections. When it is reached, a new connection closes the
	// oldest idle connection of the origin that has the most connections. While more than a quarter
	// of the connections have not completed their TLS handshake, the new connection closes one of
	// these. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by origin. A handshake that waits for its client has no slot.
	//
	// A handshake has a slot while it calls the callbacks of TLS, except for VerifyConnection if
	// the session is resumed or the server asks for no client certificate. Default: half of
	// GOMAXPROCS, at least 1.
	MaxHandshakes int
	// MaxHandshakeBytes bounds the bytes that a TLS connection receives until the header of its
	// first request is complete. Without this bound, a handshake would take 64 KiB or more for each
	// connection. Default: 128 KiB.
	MaxHandshakeBytes int
	// MaxHeaderBytes bounds the header of a request. Default: 64 KiB.
	MaxHeaderBytes int

	// ReadHeaderTimeout bounds the TLS handshake, and the header of each request. Default: 10 s.
	ReadHeaderTimeout time.Duration
	// ReadTimeout bounds reading one request. Default: 10 s.
	ReadTimeout time.Duration
	// WriteTimeout bounds the time from the header of a request to the end of its answer, and each
	// write without a request. Default: 20 s.
	WriteTimeout time.Duration
	// IdleTimeout bounds the time between two requests of a connection. Default: 3 min.
	IdleTimeout time.Duration
	// ShutdownTimeout is how long Serve waits for requests in flight at its end. Default: 10 s.
	ShutdownTimeout time.Duration

	// Handshaken is called after each TLS handshake that succeeds, and before the first request of
	// its connection is read. During the call, the connection has a slot of MaxHandshakes. kept is
	// the place that [Kept] returns for its requests. It may be called concurrently. Default: none.
	Handshaken func(state *tls.ConnectionState, kept *atomic.Value)
	// HandshakeFailed is called for each failed TLS handshake. It may be called concurrently and
	// must not block. Default: none. cause is a metric label:
	//
	//   - "no_certificate": the client must send a certificate and sent none
	//   - "untrusted": this server refused the certificate of the client
	//   - "bad_certificate": the client refused the certificate of this server
	//   - "protocol": there is no common version or cipher, or it was not TLS
	//   - "timeout": the handshake took longer than ReadHeaderTimeout
	//   - "closed": the client closed the connection after its first byte
	//   - "other": an error of this server, such as missing key material
	//
	// It is not called for a connection that ends before its first byte, such as the probe of a
	// load balancer. Nor is it called for a connection that this server closed.
	HandshakeFailed func(cause string, remote net.Addr, err error)
	// HandshakeSlow is called for each TLS handshake that ends 1 s or more after its connection was
	// accepted, even if the handshake failed. By then, the client may have given up its request. It
	// is not called for a client that has sent nothing. It may be called concurrently and must not
	// block. Default: none.
	HandshakeSlow func()
	// ConnectionClosed is called for each connection that was closed for MaxConnections. It may be
	// called concurrently and must not block. Default: none. reason is a metric label:
	//
	//   - "displaced": a new connection got the slot of this one
	//   - "no_slot": the connection was new, and its origin already had the most connections, all
	//     busy
	ConnectionClosed func(reason string)
	// Logger gets failed handshakes at warn, at most one a minute for each cause. It also gets
	// errors of accepting at the same pace, and panics of the handler. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		MaxConnections:    16 << 10,
		MaxHandshakes:     max(runtime.GOMAXPROCS(0)/2, 1),
		MaxHandshakeBytes: 128 << 10,
		MaxHeaderBytes:    64 << 10,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       3 * time.Minute,
		ShutdownTimeout:   10 * time.Second,
		HandshakeFailed:   func(string, net.Addr, error) {},
		HandshakeSlow:     func() {},
		ConnectionClosed:  func(string) {},
		Logger:            slog.New(slog.DiscardHandler),
	})
}
