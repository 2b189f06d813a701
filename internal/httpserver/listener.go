package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"
)

// listener accepts connections that have a slot of the limiter. It pauses only for
// evicted connections that have not ended, and never for longer than 100 ms.
//
// It does each TLS handshake in a separate goroutine, which ends with the handshake. A handshake
// needs a stack of 16 KiB and more. In the goroutine that serves the connection, that stack would
// stay until several garbage collections have shrunk it.
//
// Accept also returns failed handshakes: [net/http.Server] then answers and reports them.
type listener struct {
	net.Listener

	server  *Server
	timeout time.Duration
	ready   chan net.Conn
	failed  chan error
	parking *parking
	// ctx ends with Close.
	ctx  context.Context //nolint:containedctx // It has the life of the listener.
	stop context.CancelFunc
}

// startListener returns a listener that has begun to accept connections.
func (s *Server) startListener() *listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &listener{
		Listener: s.listener, server: s,
		timeout: min(s.opts.ReadHeaderTimeout, s.opts.ReadTimeout, s.opts.WriteTimeout),
		ready:   make(chan net.Conn), failed: make(chan error), ctx: ctx, stop: stop,
	}

	l.parking = &parking{
		resume: func(v *visit) { l.handOver(v) }, work: &s.open, parked: map[*tls.Conn]struct{}{},
	}
	s.open.Go(l.acceptAll)
	return l
}

// acceptAll accepts connections until the listener is closed. After an error, such as "too many
// open files", it waits until Accept has returned it, because [net/http.Server] paces errors.
func (l *listener) acceptAll() {
	for l.ctx.Err() == nil {
		l.server.limiter.awaitEvicted(l.ctx.Done())

		inner, err := l.Listener.Accept()
		if err != nil {
			l.handOverError(err)
			continue
		}

		c := l.server.admitConn(inner)
		if c != nil {
			l.server.open.Go(func() { l.openConn(c) })
		}
	}
}

// handOverError logs the error of a listener, and waits until Accept has returned it.
func (l *listener) handOverError(err error) {
	if !errors.Is(err, net.ErrClosed) {
		l.server.log.LogAttrs(l.ctx, slog.LevelWarn, "cannot accept connections", slog.Any("error", err))
	}

	select {
	case l.failed <- err:
	case <-l.ctx.Done():
	}
}

// slowHandshake is the shortest timeout that a client of a webhook can have.
const slowHandshake = time.Second

// openConn does the TLS handshake of a connection, if there is one, and hands the connection to
// Accept.
func (l *listener) openConn(c *conn) {
	if l.server.opts.TLS == nil {
		l.handOver(c)
		return
	}

	encrypted := tls.Server(c, l.server.http.TLSConfig)
	_ = c.SetDeadline(time.Now().Add(l.timeout)) // It fails for a closed connection.
	err := l.doHandshake(encrypted, c)
	_ = c.SetDeadline(time.Time{})

	isComplete := err == nil
	if isComplete {
		c.slot.markSettled()
	}
	if c.received.Load() && time.Since(c.accepted) >= slowHandshake {
		l.server.opts.HandshakeSlow()
	}

	if !isComplete { // The connection keeps the error.
		l.handOver(encrypted)
		return
	}

	socket := socketOf(c.Conn)
	canPark := socket != nil && encrypted.ConnectionState().NegotiatedProtocol != protoHTTP2
	if canPark {
		l.handOver(&visit{Conn: encrypted, socket: socket, parking: l.parking})
		return
	}

	l.handOver(encrypted)
}

// doHandshake does the handshake. If a callback of the configuration panics, only this connection
// ends, as in net/http. So no client can end the process with a panic.
func (l *listener) doHandshake(encrypted *tls.Conn, c *conn) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
			l.server.opts.HandshakeFailed(causeOther, c.RemoteAddr(), err)
			l.server.log.LogAttrs(l.ctx, slog.LevelError, "TLS handshake failed", slog.String("cause", "panic"),
				slog.Any("error", err), slog.String("stack", string(debug.Stack())))
			_ = c.cut() // Nothing else is reported then.
		}
	}()

	if err := encrypted.HandshakeContext(l.ctx); err != nil || l.server.opts.Handshaken == nil {
		return err
	}

	state := encrypted.ConnectionState()
	err = c.inSlot(func() { l.server.opts.Handshaken(&state, &c.kept) })
	if err != nil {
		_ = c.cut() // It is served, and ends.
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.server.handshakeFailed(c, causeTimeout, err)
	}

	return err
}

// handOver gives a connection to Accept, or closes it when the server is shutting down.
func (l *listener) handOver(c net.Conn) {
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		_ = below(c).Close()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close also ends the handshakes.
func (l *listener) Close() error {
	l.stop()
	l.parking.closeParked()
	return l.Listener.Close()
}
