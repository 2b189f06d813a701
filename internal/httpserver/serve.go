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
	"slices"
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
	errEnded               = errors.New("server ended unexpectedly")
	errNoServerCertificate = errors.New("Options.TLS has no certificate, and no function that returns one")
)

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

func serverTLS(opts Options) *tls.Config {
	if opts.TLS == nil {
		return nil
	}

	config := opts.TLS.Clone()
	// A name may then be listed twice, which has no effect.
	config.NextProtos = slices.Concat(config.NextProtos, []string{protoHTTP2, protoHTTP1})

	if opts.HTTP1Only {
		config.NextProtos = slices.DeleteFunc(config.NextProtos, func(name string) bool { return name == protoHTTP2 })
	}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}

	return config
}

// protocols includes HTTP/2 without TLS, for clients with prior knowledge.
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

// Serve serves until ctx ends. Then it accepts no more connections and shuts down in three steps:
//
//   - it waits for requests in flight, at most [Options.ShutdownTimeout]
//   - it cancels the contexts of the remaining requests, and waits for one more second
//   - it closes their connections
//
// It returns an error if it closed any of these connections, or if serving failed. It must be
// called once. Unless it returns an error, all its callbacks have returned before it does.
func (s *Server) Serve(ctx context.Context) error {
	accepting, err := s.startAccepting()
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

// startAccepting returns the listener to serve. [Server.open] counts it from now on.
func (s *Server) startAccepting() (net.Listener, error) {
	if s.opts.TLS != nil && !hasCertificate(s.opts.TLS) {
		_ = s.Close() // The missing certificate counts.
		return nil, fmt.Errorf("%w: %w", errEnded, errNoServerCertificate)
	}
	return s.startListener(), nil
}

func hasCertificate(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil
}

// shutdown ends all connections. abort cancels the contexts of requests.
func (s *Server) shutdown(ctx context.Context, abort context.CancelFunc) error {
	// Shutdown of net/http waits for TLS, and TLS waits for clients that read nothing.
	defer time.AfterFunc(s.opts.ShutdownTimeout+abortGrace, s.limiter.evictAll).Stop()

	if s.drainRequests(ctx, s.opts.ShutdownTimeout) {
		return nil
	}

	abort()
	if s.drainRequests(ctx, abortGrace) {
		return nil
	}

	_ = s.http.Close() // Its error comes from the listener, which is closed.
	return errAborted
}

// drainRequests reports whether all requests and callbacks ended in time.
func (s *Server) drainRequests(ctx context.Context, timeout time.Duration) bool {
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

// growStack grows the stack of this goroutine to 16 KiB in one step. net/http starts a goroutine
// with 2 KiB for each request of HTTP/2, and the runtime would copy its stack at each doubling.
//
//go:noinline
func growStack(index int64) byte {
	var room [8 << 10]byte
	return room[uint64(index)%uint64(len(room))] //nolint:gosec // Any index will do.
}
