package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// Limits of HTTP/2, and of the end of Serve.
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

// The errors of Serve.
var (
	errAborted = errors.New("requests in flight did not end in time and were cut off")
	errEnded   = errors.New("server ended by itself")

	errNoServerCertificate = errors.New("Options.TLS has no certificate, and no function that returns one")
)

// Server is an HTTP server that is bound to its address. Create one with [Bind].
type Server struct {
	listener net.Listener
	http     *http.Server
	opts     Options
	limiter  *limiter
	// queue is nil without TLS.
	queue *fairQueue
	log   *slog.Logger // paced
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
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
			return nil, fmt.Errorf("cannot bind: %w", err)
		}
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
	s.http = s.newHTTP(handler)
	return s
}

// newHTTP returns the server of net/http, with all limits set.
func (s *Server) newHTTP(handler http.Handler) *http.Server {
	opts := s.opts
	return &http.Server{
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
}

// serverTLS returns a clone with a minimum version and protocols, or nil for plain HTTP.
func serverTLS(opts Options) *tls.Config {
	if opts.TLS == nil {
		return nil
	}
	config := opts.TLS.Clone()
	config.NextProtos = nextProtos(config.NextProtos, opts.HTTP1Only)
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	return config
}

// protocols returns the versions of HTTP that the server speaks. Without TLS, a client of HTTP/2
// needs prior knowledge.
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

// accepting returns the listener to serve. With TLS, [Server.open] counts it from now on.
func (s *Server) accepting() (net.Listener, error) {
	if s.opts.TLS == nil {
		return limitedListener{s.listener, s}, nil
	}
	config := s.http.TLSConfig
	if len(config.Certificates) == 0 && config.GetCertificate == nil && config.GetConfigForClient == nil {
		_ = s.Close() // The missing certificate counts.
		return nil, fmt.Errorf("%w: %w", errEnded, errNoServerCertificate)
	}
	return s.newTLSListener(), nil
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

// awaitCallbacks waits for the last callbacks of connections that are closed. It gives up when ctx
// ends, because a stalled log sink must not keep the process alive.
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
				s.opts.Logger.ErrorContext(r.Context(), "panic while a request was answered",
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
