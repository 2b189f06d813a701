package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
)

// writeGrace is the time for writing an answer of a few bytes.
const writeGrace = 5 * time.Second

var (
	errStarted = errors.New("listener was started before: want one Start for each New")
	errPlain   = errors.New("peers are taken from TLS, but Options.TLS is nil: " +
		"want a config that asks for client certificates")
)

// Start binds the address and serves until ctx ends. Then it answers new requests with 503 and
// waits for requests in flight, at most Options.ShutdownTimeout. It can be called once.
//
// It returns an error if the address cannot be bound, if serving fails, or if requests were cut
// off. It also fails if another listener delivers the resyncs of one of its managers.
func (l *Listener) Start(ctx context.Context) error {
	if !l.state.CompareAndSwap(idle, starting) {
		return errStarted
	}
	defer l.stop()
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
		HandshakeFailed:   func(cause string, _ net.Addr, _ error) { l.opts.Hooks.HandshakeFailed(cause) },
		ConnectionClosed:  l.opts.Hooks.ConnectionDropped,
		Logger:            l.opts.Logger,
	}
}

// serve runs the server, and beside it the resyncs of the fleet.
func (l *Listener) serve(ctx context.Context, server *httpserver.Server) error {
	running, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop(nil)
	if l.opts.Fleet != nil {
		beside.Go(func() { stop(l.intake.DeliverResyncs(running)) })
	}
	l.state.Store(serving)
	l.opts.Logger.InfoContext(ctx, "listener started", "address", server.Addr().String(), "tls", l.opts.TLS != nil)
	err := l.serveUntil(running, server)
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		err = errors.Join(cause, err)
	}
	l.opts.Logger.InfoContext(ctx, "listener stopped")
	return err
}

// serveUntil refuses requests from the end of ctx on, before the server begins to shut down.
func (l *Listener) serveUntil(ctx context.Context, server *httpserver.Server) error {
	serving, shutDown := context.WithCancel(context.WithoutCancel(ctx))
	defer shutDown()
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	l.stop()
	shutDown()
	return <-served
}

func (l *Listener) stop() {
	l.state.Store(stopping)
	l.intake.Stop()
}

// checkHandshakes returns a copy of config, and of the configurations that it returns, that calls
// check in each handshake.
func checkHandshakes(config *tls.Config, check func(*tls.ConnectionState)) *tls.Config {
	h := handshakes{checkPeer: check}
	config = h.hook(config)
	if next := config.GetConfigForClient; next != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := next(hello)
			if err != nil || chosen == nil {
				return nil, err
			}
			return h.hooked(chosen), nil
		}
	}
	return config
}

type handshakes struct {
	checkPeer func(*tls.ConnectionState)
	last      atomic.Pointer[hookedConfig]
}

type hookedConfig struct{ from, to *tls.Config }

// hooked returns one copy for successive handshakes with the same config: clients resume sessions
// only with the ticket keys of that copy.
func (h *handshakes) hooked(config *tls.Config) *tls.Config {
	if last := h.last.Load(); last != nil && last.from == config {
		return last.to
	}
	last := &hookedConfig{config, h.hook(config)}
	h.last.Store(last)
	return last.to
}

func (h *handshakes) hook(config *tls.Config) *tls.Config {
	config = config.Clone()
	first := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if first != nil {
			if err := first(state); err != nil {
				return err
			}
		}
		h.check(&state)
		return nil
	}
	return config
}

// check drops a panic of the operator's code. The first request has it again, and is answered 503.
func (h *handshakes) check(state *tls.ConnectionState) {
	defer func() { _ = recover() }()
	h.checkPeer(state)
}
