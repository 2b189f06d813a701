package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpserver"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// Limits of both servers. An API server on the same network sends its largest object in less than a
// second. It closes idle connections after 90 s. The agent must keep them for longer, or the API
// server writes a review to a connection that was just closed.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 15 * time.Second
	idleTimeout       = 3 * time.Minute
	maxHeaderBytes    = 32 << 10
	// maxScrapers is the number of connections of the metrics port.
	maxScrapers = 64
)

// server is an HTTP server with a name.
type server struct {
	*httpserver.Server

	name string
	tls  bool
	log  *slog.Logger
}

// bind returns a server that is bound to address. opts need no timeouts.
//
// It speaks HTTP/1.1 only. API servers speak nothing else to webhooks that are not on their own
// machine, so that their requests reach all replicas (kubernetes/kubernetes#75791), and a protocol
// that is not offered cannot be attacked.
func bind(
	ctx context.Context, name string, address bindAddress, handler http.Handler, opts httpserver.Options,
	log *slog.Logger,
) (*server, error) {
	opts.Logger = log.With(slog.String("server", name))
	opts.HTTP1Only = true
	opts.MaxHeaderBytes = maxHeaderBytes
	opts.ReadHeaderTimeout, opts.ReadTimeout = readHeaderTimeout, readTimeout
	opts.WriteTimeout, opts.IdleTimeout = writeTimeout, idleTimeout

	bound, err := httpserver.Bind(ctx, address.String(), handler, opts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	return &server{bound, name, opts.TLS != nil, opts.Logger}, nil
}

// observingOptions are those of the metrics port.
func observingOptions(metrics *prometheus.Agent, shutdown time.Duration) httpserver.Options {
	return httpserver.Options{
		MaxConnections:   maxScrapers,
		ShutdownTimeout:  shutdown,
		ConnectionClosed: func(reason string) { metrics.ConnectionDropped("metrics", reason) },
	}
}

// webhookOptions are those of the webhook. closed is called for each connection that is closed for
// the limit.
func webhookOptions(
	c config, config *tls.Config, metrics *prometheus.Agent, closed func(), shutdown time.Duration,
) httpserver.Options {
	config.NextProtos = []string{"http/1.1"}

	return httpserver.Options{
		TLS:             config,
		MaxConnections:  c.connections,
		MaxHandshakes:   c.handshakes,
		ShutdownTimeout: shutdown,
		HandshakeFailed: func(cause string, _ net.Addr, _ error) { metrics.HandshakeFailed(cause) },
		ConnectionClosed: func(reason string) {
			metrics.ConnectionDropped("webhook", reason)
			closed()
		},
	}
}

// component serves until its context ends, and then finishes the requests in flight.
func (s *server) component() component {
	return component{s.name, func(ctx context.Context) error {
		s.log.InfoContext(ctx, "listening", slog.String("address", s.Addr().String()), slog.Bool("tls", s.tls))

		return s.Serve(ctx)
	}}
}
