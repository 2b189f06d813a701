package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// maxHeader has room for a client certificate with its chain beside what else a gateway adds.
	maxHeader = 64 << 10
	// maxStreams bounds the requests on one HTTP/2 connection.
	maxStreams = 256
	// pingAfter and pingTimeout end HTTP/2 connections whose other end is gone without a word.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
	// writeGrace is what an answer of a few bytes may take.
	writeGrace = 5 * time.Second
	// abortGrace is what requests get that are told to give up, so that their senders have an answer.
	abortGrace = time.Second
)

var (
	errStarted  = errors.New("listener was started before: want one Start for each New")
	errPlain    = errors.New("peers are taken from TLS, but Options.TLS is nil: want a config that asks for client certificates")
	errAborted  = errors.New("requests in flight did not end in time and were cut off")
	errNoAnswer = errors.New("server ended by itself")
)

// Start binds the address, serves until ctx ends, and waits for requests in flight up to Options.ShutdownTimeout,
// during which new requests are answered 503. It returns an error when the address can not be bound, when serving
// fails, when another listener delivers the resyncs of one of its managers, or when requests were cut off. It can be called once.
func (l *Listener) Start(ctx context.Context) error {
	if !l.state.CompareAndSwap(idle, starting) {
		return errStarted
	}
	defer l.state.Store(stopping)

	if l.needsTLS() && l.opts.TLS == nil {
		return errPlain
	}

	bound, err := l.bind(ctx)
	if err != nil {
		return err
	}

	return l.serve(ctx, bound)
}

func (l *Listener) bind(ctx context.Context) (net.Listener, error) {
	bound := l.opts.Listener
	if bound == nil {
		var config net.ListenConfig

		var err error
		if bound, err = config.Listen(ctx, "tcp", l.opts.Addr); err != nil {
			return nil, fmt.Errorf("listener can not bind its address: %w", err)
		}
	}

	addr := bound.Addr()
	l.bound.Store(&addr)

	return limitConnections(bound, l.opts), nil
}

// serve runs the server in a goroutine of its own, for which it waits.
func (l *Listener) serve(ctx context.Context, bound net.Listener) error {
	// Requests in flight go on when ctx ends, until they are aborted.
	base, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	server := l.newServer(base)
	served := make(chan error, 1)

	go func() { served <- l.accept(server, bound) }()

	watching, stop := context.WithCancelCause(ctx)

	if l.opts.Fleet != nil {
		var reviews sync.WaitGroup
		defer reviews.Wait()

		reviews.Go(func() { stop(l.opts.Fleet.Start(watching, l.resyncHandlers())) })
	}

	defer stop(nil)

	l.state.Store(serving)
	l.opts.Logger.InfoContext(ctx, "listener started", "address", bound.Addr().String(), "tls", l.opts.TLS != nil)

	select {
	case err := <-served:
		_ = server.Close() // What counts is why it ended.

		return fmt.Errorf("%w: %w", errNoAnswer, err)
	case <-watching.Done():
	}

	l.state.Store(stopping)
	err := l.shutdown(base, server, abort)

	if ctx.Err() == nil {
		err = errors.Join(context.Cause(watching), err)
	}

	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}

	l.opts.Logger.InfoContext(ctx, "listener stopped")

	return err
}

func (l *Listener) accept(server *http.Server, bound net.Listener) error {
	if l.opts.TLS == nil {
		return server.Serve(bound)
	}

	return server.ServeTLS(bound, "", "")
}

// shutdown waits for the requests in flight, then tells them to give up, then cuts them off.
func (l *Listener) shutdown(ctx context.Context, server *http.Server, abort context.CancelFunc) error {
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.opts.ShutdownTimeout)
	defer cancel()

	if server.Shutdown(patient) == nil {
		return nil
	}

	abort()

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortGrace)
	defer cancel()

	if server.Shutdown(last) == nil {
		return nil
	}

	_ = server.Close() // It reports the listener, which is closed.

	return errAborted
}

func (l *Listener) newServer(base context.Context) *http.Server {
	return &http.Server{
		Handler:                      l,
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    serverTLS(l.opts.TLS),
		ReadHeaderTimeout:            l.opts.ReadTimeout,
		ReadTimeout:                  l.opts.ReadTimeout,
		WriteTimeout:                 l.opts.ReadTimeout + l.opts.HandleTimeout + writeGrace,
		IdleTimeout:                  l.opts.IdleTimeout,
		MaxHeaderBytes:               maxHeader,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ConnContext:                  connContext,
		ConnState:                    connState,
		ErrorLog:                     slog.NewLogLogger(serverLog{l.opts.Logger.Handler(), l.opts.Hooks.HandshakeFailed}, slog.LevelDebug),
		Protocols:                    protocols(l.opts.TLS != nil),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
		},
	}
}

// protocols offers HTTP/1.1 and HTTP/2. Without TLS that is HTTP/2 with prior knowledge, which a gateway may have.
func protocols(encrypted bool) *http.Protocols {
	var p http.Protocols

	p.SetHTTP1(true)
	p.SetHTTP2(encrypted)
	p.SetUnencryptedHTTP2(!encrypted)

	return &p
}

func serverTLS(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}

	config = config.Clone()
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}

	return config
}

// serverLog takes what the HTTP server has to say: noise that strangers can make, for the log at debug level only, and
// the only trace of a handshake that failed.
type serverLog struct {
	slog.Handler

	handshakeFailed func()
}

// Enabled returns true, as the hook needs every line.
func (s serverLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (s serverLog) Handle(ctx context.Context, line slog.Record) error {
	// A connection that ends before it says a word is the probe of a load balancer.
	failed := strings.HasPrefix(line.Message, "http: TLS handshake error") && !strings.HasSuffix(line.Message, ": EOF")
	if failed && s.handshakeFailed != nil {
		s.handshakeFailed()
	}

	if !s.Handler.Enabled(ctx, line.Level) {
		return nil
	}

	return s.Handler.Handle(ctx, line)
}
