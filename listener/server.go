package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// writeGrace is the time for writing an answer of a few bytes.
const writeGrace = 5 * time.Second

var (
	errStarted = errors.New("listener has already been started: call Start once for each New")
	errPlain   = errors.New("peers are taken from TLS, but Options.TLS is nil: " +
		"want a config that asks for client certificates")
)

// Start binds the address and serves until ctx ends. Then it answers new requests with 503 and
// waits at most Options.ShutdownTimeout for requests in flight. Start can be called only once.
//
// It returns an error if the address cannot be bound, if serving fails, or if requests were cut
// off. It also fails if another listener delivers the resyncs of one of its managers.
func (l *Listener) Start(ctx context.Context) error {
	if !l.state.CompareAndSwap(idle, starting) {
		return errStarted
	}
	defer l.beginStop()

	if l.peers.ownsConnection && l.opts.TLS == nil {
		return errPlain
	}
	server, err := httpserver.Bind(ctx, l.opts.Addr, l, l.serverOptions())
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}

	addr := server.Addr()
	l.bound.Store(&addr)
	return l.serve(ctx, server)
}

func (l *Listener) serverOptions() httpserver.Options {
	return httpserver.Options{
		Listener:          l.opts.Listener,
		TLS:               l.opts.TLS,
		MaxConnections:    l.opts.MaxConnections,
		MaxHandshakes:     l.opts.MaxHandshakes,
		ReadHeaderTimeout: l.opts.ReadTimeout,
		ReadTimeout:       l.opts.ReadTimeout,
		WriteTimeout:      l.opts.ReadTimeout + l.opts.HandleTimeout + writeGrace,
		IdleTimeout:       l.opts.IdleTimeout,
		ShutdownTimeout:   l.opts.ShutdownTimeout,
		Handshaken:        l.peers.checkHandshake,
		HandshakeFailed: func(cause string, _ net.Addr, _ error) {
			l.opts.Hooks.HandshakeFailed(hook.HandshakeFailure{Cause: hook.HandshakeCause(cause)})
		},
		ConnectionClosed: func(reason string) {
			l.opts.Hooks.ConnectionDropped(hook.ConnectionDrop{Reason: core.Reason(reason)})
		},
		Logger: l.opts.Logger,
	}
}

// serve runs the server and, in parallel, the resyncs of the fleet and the list of revoked senders.
func (l *Listener) serve(ctx context.Context, server *httpserver.Server) error {
	running, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop(nil)

	if l.opts.Fleet != nil {
		beside.Go(func() { stop(l.intake.DeliverResyncs(running)) })
	}
	cut := func(list *intake.RevocationList) { l.cutRevoked(running, server, list) }
	beside.Go(func() { l.intake.FollowRevocations(running, cut) })

	l.state.Store(serving)
	refused := context.AfterFunc(running, l.beginStop) // New requests are refused from the end of ctx on.
	defer refused()

	l.opts.Logger.InfoContext(ctx, "listener started", "address", server.Addr().String(), "tls", l.opts.TLS != nil)
	err := server.Serve(running)
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		err = errors.Join(cause, err)
	}
	l.opts.Logger.InfoContext(ctx, "listener stopped")
	return err
}

// cutRevoked ends the connections of revoked senders. Those of a gateway carry the requests of many
// runtimes, and stay: each request is refused.
func (l *Listener) cutRevoked(ctx context.Context, server *httpserver.Server, list *intake.RevocationList) {
	cut := server.CutKept(func(kept any) bool {
		k, ok := kept.(keptVerdict)
		return ok && l.peers.ownsConnection && list.Revokes(k.peer)
	})
	if cut > 0 {
		l.opts.Logger.WarnContext(ctx, "closed the connections of revoked senders", "connections", cut)
	}
}

func (l *Listener) beginStop() {
	l.state.Store(stopping)
	l.intake.Stop()
}
