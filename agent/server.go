package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
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

// bindServer binds address, and returns a component that serves until it is stopped, and then
// finishes the requests in flight. opts need no timeouts. The webhook and the port of metrics use
// it.
//
// It speaks HTTP/1.1 only. API servers speak nothing else to webhooks on other machines, so that
// their requests reach all replicas (kubernetes/kubernetes#75791).
func (b *builder) bindServer(
	name, address string, handler http.Handler, opts httpserver.Options,
) (_ component, err error) {
	opts.Listener, err = b.parts.Listen(b.ctx, "tcp", address)
	if err != nil {
		return component{}, fmt.Errorf("%s: cannot bind: %w", name, err)
	}

	opts.Logger = b.log.With(slog.String("server", name))
	opts.HTTP1Only = true
	opts.MaxHeaderBytes = maxHeaderBytes
	opts.ReadHeaderTimeout = readHeaderTimeout
	opts.ReadTimeout = readTimeout
	opts.WriteTimeout = writeTimeout
	opts.IdleTimeout = idleTimeout
	bound, err := httpserver.Bind(b.ctx, address, handler, opts)
	if err != nil {
		return component{}, errors.Join(fmt.Errorf("%s: %w", name, err), opts.Listener.Close())
	}

	b.bound = append(b.bound, bound)
	return component{name, func(ctx context.Context) error {
		opts.Logger.InfoContext(ctx, "listening",
			slog.String("address", bound.Addr().String()), slog.Bool("tls", opts.TLS != nil))
		return bound.Serve(ctx)
	}}, nil
}

func (b *builder) connectionDropped(server, reason string) {
	b.metrics.ConnectionDropped(hook.ConnectionDrop{Server: server, Reason: core.Reason(reason)})
}
