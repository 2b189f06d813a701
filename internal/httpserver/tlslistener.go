package httpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"time"
)

// tlsListener does each TLS handshake in a goroutine of its own, which ends with it. A handshake
// needs a stack of 16 KiB and more. In the goroutine that serves the connection, that stack would
// stay until several garbage collections have shrunk it.
//
// Accept returns failed handshakes, too: [net/http.Server] then answers and reports them.
type tlsListener struct {
	limitedListener

	config *tls.Config
	// timeout bounds a handshake.
	timeout time.Duration
	ready   chan net.Conn
	failed  chan error
	parking *parking
	// ctx ends with Close.
	ctx  context.Context //nolint:containedctx // It has the life of the listener.
	stop context.CancelFunc
}

// newTLSListener starts to accept. The caller must call Close.
func (s *Server) newTLSListener() *tlsListener {
	ctx, stop := context.WithCancel(context.Background())
	l := &tlsListener{
		limitedListener: limitedListener{s.listener, s}, config: s.http.TLSConfig,
		timeout: min(s.opts.ReadHeaderTimeout, s.opts.ReadTimeout, s.opts.WriteTimeout),
		ready:   make(chan net.Conn), failed: make(chan error), ctx: ctx, stop: stop,
	}
	l.parking = &parking{
		resume: func(v *visit) { l.handOver(v) }, work: &s.open, parked: map[*tls.Conn]struct{}{},
	}
	s.open.Go(l.acceptAll)
	return l
}

// acceptAll accepts connections until the listener is closed. After an error it waits until Accept
// has returned it, because [net/http.Server] paces errors.
func (l *tlsListener) acceptAll() {
	for l.ctx.Err() == nil {
		c, err := l.accept()
		if err == nil {
			l.server.open.Go(func() { l.handshake(c) })
			continue
		}
		select {
		case l.failed <- err:
		case <-l.ctx.Done():
		}
	}
}

// slowHandshake is the shortest timeout that a client of a webhook can have.
const slowHandshake = time.Second

// handshake does the handshake of a connection, and hands the connection to Accept.
func (l *tlsListener) handshake(c *conn) {
	encrypted := tls.Server(c, l.config)
	_ = c.SetDeadline(time.Now().Add(l.timeout)) // It fails for a closed connection.
	err := l.shake(encrypted, c)                 // The connection keeps its error.
	_ = c.SetDeadline(time.Time{})
	if c.received.Load() && time.Since(c.accepted) >= slowHandshake {
		l.server.opts.HandshakeSlow()
	}
	socket := socketOf(c.Conn)
	if err == nil && socket != nil && encrypted.ConnectionState().NegotiatedProtocol != protoHTTP2 {
		l.handOver(&visit{Conn: encrypted, socket: socket, parking: l.parking})
		return
	}
	l.handOver(encrypted)
}

// shake does the handshake. A panic of a callback of the configuration costs this connection only,
// as in net/http: no client can end the process by it.
func (l *tlsListener) shake(encrypted *tls.Conn, c *conn) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
			l.server.opts.HandshakeFailed(causeOther, c.RemoteAddr(), err)
			l.server.log.LogAttrs(l.ctx, slog.LevelError, "TLS handshake failed", slog.String("cause", "panic"),
				slog.Any("error", err), slog.String("stack", string(debug.Stack())))
			_ = c.cut() // Nothing else is reported then.
		}
	}()
	return encrypted.HandshakeContext(l.ctx)
}

// handOver gives a connection to Accept, or closes it when the server is shutting down.
func (l *tlsListener) handOver(c net.Conn) {
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		_ = below(c).Close()
	}
}

func (l *tlsListener) Accept() (net.Conn, error) {
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
func (l *tlsListener) Close() error {
	l.stop()
	l.parking.close()
	return l.limitedListener.Close()
}

// The names of the protocols in the handshake (RFC 7301).
const protoHTTP2, protoHTTP1 = "h2", "http/1.1"

// nextProtos returns the protocols to offer: those of a configuration, with HTTP/1.1, and with or
// without HTTP/2. A name may be there twice.
func nextProtos(have []string, http1Only bool) []string {
	offered := slices.Concat(have, []string{protoHTTP2, protoHTTP1})
	if http1Only {
		offered = slices.DeleteFunc(offered, func(name string) bool { return name == protoHTTP2 })
	}
	return offered
}
