package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
)

const (
	reasonDisplaced = "displaced"
	reasonNoSlot    = "no_slot"
)

// admitConn gives a new connection a slot, and may cut off another connection to free one. It
// closes the new connection and returns nil if there is no slot.
func (s *Server) admitConn(inner net.Conn) *conn {
	c := newConn(inner, s.queue, s.opts)
	var displaces bool
	cut := func() { _ = c.cut() } // Its goroutine notices.
	c.slot, displaces = s.limiter.acquireSlot(claim{
		origin: c.origin, shakes: s.opts.TLS != nil, evict: cut, kept: &c.kept,
	})
	if displaces {
		s.opts.ConnectionClosed(reasonDisplaced)
	}
	if c.slot != nil {
		return c
	}

	_ = inner.Close() // There is no slot to free.
	s.opts.ConnectionClosed(reasonNoSlot)
	return nil
}

// CutKept closes each open connection with a kept value for which ends returns true, together with
// the requests in flight, and returns the number of closed connections. CutKept calls ends without
// a lock. It may be called while the server is served.
func (s *Server) CutKept(ends func(kept any) bool) (cut int) {
	for _, slot := range s.limiter.allSlots() {
		kept := slot.kept.Load()
		if kept != nil && ends(kept) {
			slot.evict()
			cut++
		}
	}
	return cut
}

// connState implements [http.Server].ConnState. The first request is after the handshake.
func (s *Server) connState(outer net.Conn, state http.ConnState) {
	c := connOf(outer)
	if state != http.StateClosed { // Another visit may have begun.
		c.slot.setBusy(state == http.StateActive)
	}

	switch state {
	case http.StateNew:
		s.open.Add(1)
	case http.StateActive:
		c.endHandshake()
	case http.StateIdle:
		if v, ok := outer.(*visit); ok {
			v.idle.Store(true)
		}
	case http.StateHijacked:
		s.open.Done()
	case http.StateClosed:
		s.reportHandshake(outer, c)
		s.open.Done()
	}
}

func (s *Server) reportHandshake(outer net.Conn, c *conn) {
	encrypted, ok := outer.(*tls.Conn)
	if !ok {
		return
	}

	// It returns the result of the handshake that has ended.
	err := encrypted.HandshakeContext(context.Background())
	// An error is left out if this end closed the connection: in a shutdown, or for the limiter.
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return
	}

	cause := causeOf(err, len(encrypted.ConnectionState().PeerCertificates) > 0)
	if !c.received.Load() && cause == causeClosed {
		return
	}

	s.handshakeFailed(c, cause, err)
}

func (s *Server) handshakeFailed(c *conn, cause string, err error) {
	s.opts.HandshakeFailed(cause, c.RemoteAddr(), err)
	s.log.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed",
		slog.String("cause", cause), slog.String("remote", c.RemoteAddr().String()), slog.Any("error", err))
}
