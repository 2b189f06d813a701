package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// Limits of both servers. An API server on the same network sends its largest object in less than 1
// s. It closes idle connections after 90 s. The agent must keep them for longer, or the API server
// writes a review to a connection that was just closed.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 15 * time.Second
	idleTimeout       = 3 * time.Minute
	maxHeaderBytes    = 8 << 10
)

type server struct {
	*httpserver.Server

	name string
	tls  bool
	log  *slog.Logger
}

// bind returns a server that is bound to address. opts need no timeouts.
//
// It speaks HTTP/1.1 only. API servers speak nothing else to webhooks on other machines, so that
// their requests reach all replicas (kubernetes/kubernetes#75791).
func (b *builder) bind(name, address string, handler http.Handler, opts httpserver.Options) (_ *server, err error) {
	if opts.Listener, err = b.parts.Listen(b.ctx, "tcp", address); err != nil {
		return nil, fmt.Errorf("%s: cannot bind: %w", name, err)
	}
	opts.Logger = b.log.With(slog.String("server", name))
	opts.HTTP1Only = true
	opts.MaxHeaderBytes = maxHeaderBytes
	opts.ReadHeaderTimeout, opts.ReadTimeout = readHeaderTimeout, readTimeout
	opts.WriteTimeout, opts.IdleTimeout = writeTimeout, idleTimeout
	bound, err := httpserver.Bind(b.ctx, address, handler, opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), opts.Listener.Close())
	}
	return &server{bound, name, opts.TLS != nil, opts.Logger}, nil
}

// component serves until it is stopped, and then finishes the requests in flight.
func (s *server) component() component {
	return component{s.name, func(ctx context.Context) error {
		s.log.InfoContext(ctx, "listening", slog.String("address", s.Addr().String()), slog.Bool("tls", s.tls))
		return s.Serve(ctx)
	}}
}
