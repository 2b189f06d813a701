// Package httpserver is an HTTP server for ports that untrusted clients can reach. It bounds open
// connections and concurrent TLS handshakes. It shares both fairly between the origins of the
// connections, and reports each failed handshake with its cause.
//
// The origin of a connection is its remote IPv4 address or IPv6 /64 network, because one host may
// use any address in such a network. [SetOrigin] replaces it by a name.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

const (
	// maxStreams bounds the concurrent requests of one HTTP/2 connection.
	maxStreams = 256
	// pingAfter and pingTimeout end HTTP/2 connections that were lost without a packet.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
	// headerTable bounds the memory of the headers of earlier answers (RFC 7541, section 4.2), in
	// bytes. No header fits. It saves 4 KiB per connection. The table for requests keeps its size,
	// because a client may use 4 KiB before it has read the settings.
	headerTable = 1
	// abortGrace is how long requests have to answer after their contexts are cancelled.
	abortGrace = time.Second
	logEvery   = time.Minute
)

var (
	errAborted             = errors.New("requests in flight did not end in time and were cut off")
	errEnded               = errors.New("server ended by itself")
	errNoServerCertificate = errors.New("Options.TLS has no certificate, and no function that returns one")
)

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

// Bind binds a TCP address and returns a server for handler. It fails when the address cannot be
// bound or an option is negative. The caller must call Serve or Close.
func Bind(ctx context.Context, address string, handler http.Handler, opts Options) (*Server, error) {
	if err := option.NoneNegative(opts); err != nil {
		return nil, err
	}

	listener := opts.Listener
	if listener == nil {
		bound, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("cannot bind: %w", err)
		}

		listener = bound
	}

	return newServer(listener, handler, opts.withDefaults()), nil
}

// newServer returns a server for a bound listener. The defaults of opts must be set.
func newServer(listener net.Listener, handler http.Handler, opts Options) *Server {
	s := &Server{
		listener: listener, opts: opts, limiter: newLimiter(opts.MaxConnections),
		log: pacedlog.New(opts.Logger, logEvery, "cause"),
	}
	if opts.TLS != nil {
		s.queue = newFairQueue(opts.MaxHandshakes)
	}

	s.http = &http.Server{
		Handler:                      s.logPanics(handler),
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    serverTLS(opts),
		ReadHeaderTimeout:            opts.ReadHeaderTimeout,
		ReadTimeout:                  opts.ReadTimeout,
		WriteTimeout:                 opts.WriteTimeout,
		IdleTimeout:                  opts.IdleTimeout,
		MaxHeaderBytes:               opts.MaxHeaderBytes,
		ConnContext:                  withConn,
		ConnState:                    s.connState,
		ErrorLog:                     slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		Protocols:                    protocols(opts),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      maxStreams,
			MaxEncoderHeaderTableSize: headerTable,
			SendPingTimeout:           pingAfter,
			PingTimeout:               pingTimeout,
		},
	}

	return s
}

const protoHTTP2, protoHTTP1 = "h2", "http/1.1"

func serverTLS(opts Options) *tls.Config {
	if opts.TLS == nil {
		return nil
	}

	config := opts.TLS.Clone()
	// A name may be there twice.
	config.NextProtos = slices.Concat(config.NextProtos, []string{protoHTTP2, protoHTTP1})

	if opts.HTTP1Only {
		config.NextProtos = slices.DeleteFunc(config.NextProtos, func(name string) bool { return name == protoHTTP2 })
	}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}

	return config
}

// protocols has HTTP/2 without TLS for clients with prior knowledge.
func protocols(opts Options) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(opts.TLS != nil && !opts.HTTP1Only)
	p.SetUnencryptedHTTP2(opts.TLS == nil && !opts.HTTP1Only)

	return &p
}

// Addr returns the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close releases the address of a server that is not served.
func (s *Server) Close() error { return s.listener.Close() }

// Serve serves until ctx ends. Then it accepts no connection any more and shuts down in three
// steps:
//
//   - it waits for requests in flight, at most [Options.ShutdownTimeout]
//   - it cancels the contexts of the others, and waits for one more second
//   - it closes their connections
//
// It returns an error if it closed some, or if serving failed. It must be called once. Unless it
// returns an error, all its callbacks have returned before it does.
func (s *Server) Serve(ctx context.Context) error {
	accepting, err := s.accepting()
	if err != nil {
		return err
	}

	base, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	s.http.BaseContext = func(net.Listener) context.Context { return base }
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(accepting) }()

	select {
	case err := <-served:
		_ = s.http.Close() // The error of serving counts.
		return fmt.Errorf("%w: %w", errEnded, err)
	case <-ctx.Done():
	}

	err = s.shutdown(base, abort)
	// Shutdown makes Serve of net/http return ErrServerClosed.
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}

	return err
}

// accepting returns the listener to serve. [Server.open] counts it from now on.
func (s *Server) accepting() (net.Listener, error) {
	c := s.opts.TLS
	if c != nil && len(c.Certificates) == 0 && c.GetCertificate == nil && c.GetConfigForClient == nil {
		_ = s.Close() // The missing certificate counts.
		return nil, fmt.Errorf("%w: %w", errEnded, errNoServerCertificate)
	}
	return s.listen(), nil
}

// shutdown ends all connections. abort cancels the contexts of requests.
func (s *Server) shutdown(ctx context.Context, abort context.CancelFunc) error {
	// Shutdown of net/http waits for TLS, and that for clients that read nothing.
	defer time.AfterFunc(s.opts.ShutdownTimeout+abortGrace, s.limiter.evictAll).Stop()

	if s.drain(ctx, s.opts.ShutdownTimeout) {
		return nil
	}

	abort()
	if s.drain(ctx, abortGrace) {
		return nil
	}

	_ = s.http.Close() // Its error is that of the listener, which is closed.
	return errAborted
}

func (s *Server) drain(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return s.http.Shutdown(ctx) == nil && s.awaitCallbacks(ctx)
}

// awaitCallbacks gives up when ctx ends: a stalled log sink must not keep the process alive.
func (s *Server) awaitCallbacks(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		s.open.Wait()
		close(done)
	}()

	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// logPanics logs panics of handler. The server closes the connection, or the stream of HTTP/2.
func (s *Server) logPanics(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if err, ok := cause.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				s.opts.Logger.ErrorContext(r.Context(), "panic while answering a request",
					slog.Any("error", cause), slog.String("stack", string(debug.Stack())))
			}

			panic(http.ErrAbortHandler)
		}()
		if r.ProtoMajor > 1 {
			growStack(r.ContentLength)
		}

		handler.ServeHTTP(w, r)
	})
}

// growStack grows the stack of this goroutine to 16 KiB at once. net/http starts a goroutine with 2
// KiB for each request of HTTP/2, and the runtime would copy its stack at each doubling.
//
//go:noinline
func growStack(index int64) byte {
	var room [8 << 10]byte
	return room[uint64(index)%uint64(len(room))] //nolint:gosec // Any index will do.
}

// Options are the optional settings of a [Server]. The zero value is the documented default.
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
	// oldest idle one of the origin that has the most. While more than a quarter of them have not
	// completed their TLS handshake, it closes one of these. Default: 16,384.
	MaxConnections int
	// MaxHandshakes bounds the TLS handshakes that compute at the same time. Slots are granted
	// round-robin by origin. A handshake that waits for its client has no slot.
	//
	// A handshake has a slot while it calls the callbacks of TLS. VerifyConnection is an exception
	// if the session is resumed, or the server asks for no client certificate. Default: half of
	// GOMAXPROCS, at least 1.
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
	// WriteTimeout bounds the time from the header of a request to the end of its answer, and each
	// write without a request. Default: 20 s.
	WriteTimeout time.Duration
	// IdleTimeout bounds the time between two requests of a connection. Default: 3 min.
	IdleTimeout time.Duration
	// ShutdownTimeout is how long Serve waits for requests in flight at its end. Default: 10 s.
	ShutdownTimeout time.Duration

	// Handshaken is called after each TLS handshake that succeeds, and before the first request of
	// its connection is read. The connection has a slot of MaxHandshakes meanwhile. kept is the
	// place that [Kept] returns for its requests. It may be called concurrently. Default: none.
	Handshaken func(state *tls.ConnectionState, kept *atomic.Value)
	// HandshakeFailed is called for each failed TLS handshake. It may be called concurrently and
	// must not block. Default: none. cause is a metric label:
	//
	//   - "no_certificate": the client sent no certificate, but must
	//   - "untrusted": this server refused the certificate of the client
	//   - "bad_certificate": the client refused the certificate of this server
	//   - "protocol": there is no common version or cipher, or it was not TLS
	//   - "timeout": the handshake took longer than ReadHeaderTimeout
	//   - "closed": the client closed the connection after its first byte
	//   - "other": an error of this server, such as missing key material
	//
	// It is not called for a connection that ends before its first byte, such as the probe of a
	// load balancer. It is not called for a connection that this server closed, either.
	HandshakeFailed func(cause string, remote net.Addr, err error)
	// HandshakeSlow is called for each TLS handshake that ends 1 s after its connection was
	// accepted, or later, also if it failed: its client may have given up its request. It is not
	// called for a client that has sent nothing. It may be called concurrently and must not block.
	// Default: none.
	HandshakeSlow func()
	// ConnectionClosed is called for each connection that was closed for MaxConnections. It may be
	// called concurrently and must not block. Default: none. reason is a metric label:
	//
	//   - "displaced": a new connection got the slot of this one
	//   - "no_slot": it was new, its origin has the most connections, and all of those are busy
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
