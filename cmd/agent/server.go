package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// The limits of both servers. The handshake has readHeaderTimeout, too. An API server on the same network sends its largest object
// in less than a second. It closes idle connections after 90 s: it must be the one who does, or it writes a review to a
// connection that is just closed.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 15 * time.Second
	idleTimeout       = 3 * time.Minute
	maxHeaderBytes    = 32 << 10
	// maxScrapers is how many connections the metrics port has.
	maxScrapers = 64
)

// server is an HTTP server that is bound to its address already.
type server struct {
	name     string
	listener net.Listener
	http     *http.Server
	grace    time.Duration // for requests in flight at the end
	log      *slog.Logger
}

// limits are what a server tells about strangers who come as a crowd.
type limits struct {
	connections     int
	handshakes      int // that compute at once, 0 is the default
	dropped         func(server, reason string)
	handshakeFailed func()
}

func (l limits) around(listener net.Listener, name string, encrypted bool) net.Listener {
	limited := &limited{Listener: listener, crowd: crowd.New(l.connections), dropped: func(reason string) { l.dropped(name, reason) }}
	if encrypted {
		limited.turns = crowd.NewTurns(cmp.Or(l.handshakes, crowd.DefaultPlaces()))
	}

	return limited
}

// bind returns a server for handler, over TLS if config is not nil.
//
// It speaks HTTP/1.1 only: API servers do not speak anything else to webhooks that are not on their own machine, so that their
// requests reach all replicas (kubernetes/kubernetes#75791), and what is not offered can not be attacked.
func bind(
	ctx context.Context, name string, address bindAddress, config *tls.Config, handler http.Handler, limits limits, log *slog.Logger,
) (*server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, fmt.Errorf("%s: can not bind: %w", name, err)
	}

	if config != nil {
		config.NextProtos = []string{"http/1.1"}
	}

	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)

	listener = limits.around(listener, name, config != nil)
	log = log.With(slog.String("server", name))

	return &server{name: name, listener: listener, log: log, http: &http.Server{
		Handler:                      handler,
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    config,
		Protocols:                    protocols,
		ReadHeaderTimeout:            readHeaderTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		ConnState:                    connState,
		ErrorLog:                     slog.NewLogLogger(&serverLog{throttled{Handler: log.Handler()}, limits.handshakeFailed}, slog.LevelWarn),
	}}, nil
}

// component serves until its context ends, and then finishes the requests in flight.
func (s *server) component(grace time.Duration) component {
	s.grace = grace

	return component{s.name, s.start}
}

func (s *server) start(ctx context.Context) error {
	served := make(chan error, 1)

	go func() { served <- s.serve() }()

	s.log.InfoContext(ctx, "listening", slog.String("address", s.listener.Addr().String()), slog.Bool("tls", s.http.TLSConfig != nil))

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}

	err := s.shutdown(context.WithoutCancel(ctx))
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}

	return err
}

func (s *server) serve() error {
	if s.http.TLSConfig == nil {
		return s.http.Serve(s.listener) //nolint:wrapcheck // The component has a name.
	}

	return s.http.ServeTLS(s.listener, "", "") //nolint:wrapcheck // The component has a name.
}

func (s *server) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.grace)
	defer cancel()

	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close() // What counts is why it was needed.

		return fmt.Errorf("requests in flight were cut off after %v: %w", s.grace, err)
	}

	return nil
}

// close is for a server that is never started.
func (s *server) close() { _ = s.listener.Close() } // Nobody was served.
