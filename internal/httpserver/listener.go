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
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// listener accepts connections that have a slot of the limiter. It pauses only for
// evicted connections that have not ended, and never for longer than 100 ms.
//
// It does each TLS handshake in a goroutine of its own, which ends with it. A handshake needs a
// stack of 16 KiB and more. In the goroutine that serves the connection, that stack would stay
// until several garbage collections have shrunk it.
//
// Accept returns failed handshakes, too: [net/http.Server] then answers and reports them.
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

func (s *Server) listen() *listener {
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

		c := l.server.admit(inner)
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
	err := l.shake(encrypted, c)                 // The connection keeps its error.
	_ = c.SetDeadline(time.Time{})
	if err == nil {
		c.slot.settle()
	}
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
func (l *listener) shake(encrypted *tls.Conn, c *conn) (err error) {
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
	l.parking.close()
	return l.Listener.Close()
}

const (
	// parkAfter is how long net/http keeps an idle connection of HTTP/1.1. A connection that was
	// parked for longer than rare is parked again immediately: its requests are heartbeats.
	parkAfter, rare = 250 * time.Millisecond, time.Second
	readBuffer      = 4 << 10
)

// visit is a connection of HTTP/1.1 over TLS, as long as net/http serves it. net/http keeps buffers
// of 8 KiB and a stack of 8 KiB for a connection that waits for its next request. So it gets a
// timeout when the connection is idle for parkAfter. Its Close then parks the connection, and the
// next byte begins another visit.
type visit struct {
	*tls.Conn

	socket  syscall.RawConn
	parking *parking
	// idle means that the next deadline of net/http is that of its wait for a request.
	idle atomic.Bool
	// waiting means that net/http waits, until its next deadline. until is the end of the wait.
	waiting atomic.Bool
	until   time.Time
	// rarely means that the connection was parked for longer than rare before its last request.
	rarely bool
	// over means that net/http has no byte of the next request, and TLS has no whole record of it.
	over atomic.Bool
}

func (v *visit) Read(b []byte) (int, error) {
	waiting := v.waiting.Load()
	if waiting && len(b) < readBuffer { // The buffer has a byte of the next request.
		_ = v.SetReadDeadline(v.until) // Read returns its error.
		waiting = false
	}

	n, err := v.Conn.Read(b)
	if waiting && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		v.over.Store(true)
	}

	return n, err
}

// SetReadDeadline implements [net.Conn]. net/http calls it before it waits for the next request,
// and again before it reads one, which may be in its buffer.
func (v *visit) SetReadDeadline(t time.Time) error {
	soon := time.Now()
	if !v.rarely {
		soon = soon.Add(parkAfter)
	}

	waiting := v.idle.Swap(false) && soon.Before(t)
	v.waiting.Store(waiting)
	if waiting {
		v.until = t
		v.rarely = false
		t = soon
	}

	return v.Conn.SetReadDeadline(t)
}

func (v *visit) Close() error {
	if v.over.Swap(false) && v.parking.park(v) {
		return nil
	}
	return v.Conn.Close()
}

// parking has a goroutine for each connection, with the smallest stack there is.
type parking struct {
	// resume gives a connection back to net/http.
	resume func(*visit)
	work   *sync.WaitGroup

	mu     sync.Mutex
	parked map[*tls.Conn]struct{}
	closed bool
}

// park parks the connection of a visit, and returns false after close.
func (p *parking) park(v *visit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.closed {
		return false
	}

	p.parked[v.Conn] = struct{}{}
	_ = v.Conn.SetReadDeadline(v.until) // The wait returns its error.
	p.work.Go(func() { p.wait(v) })

	return true
}

func (p *parking) wait(v *visit) {
	began := time.Now()
	err := awaitData(v.socket)
	v.rarely = time.Since(began) > rare
	p.mu.Lock()
	delete(p.parked, v.Conn)
	p.mu.Unlock()

	if err != nil {
		_ = v.Conn.Close() // The timeout, or the end of the server, is the reason.
		return
	}

	p.resume(v)
}

func (p *parking) close() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.closed = true
	for c := range p.parked {
		_ = c.SetReadDeadline(time.Now()) // Its goroutine closes it.
	}
}

// below returns the connection that TLS uses, or the given one.
func below(outer net.Conn) net.Conn {
	if encrypted, ok := outer.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return outer
}
