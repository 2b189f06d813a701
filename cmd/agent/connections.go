package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// Why a connection was closed before its time: values of a metric label.
const (
	droppedForAnother = "displaced"
	droppedAtOnce     = "no_place"
)

// limited is a listener with a bound on the open connections, and on the TLS handshakes that compute at once. It never stops to accept: when
// there is no place, whoever has the most connections loses one, see package crowd. The listener of the control plane does the same; neither
// may depend on the other.
type limited struct {
	net.Listener

	crowd   *crowd.Crowd
	dropped func(reason string)
	turns   *crowd.Turns // nil without TLS
}

// Accept returns the next connection that has a place.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // It is that listener.
		}

		c := l.newConn(conn)

		c.member = l.crowd.Enter(c.origin, func() {
			_ = c.cut() // Its server finds out by itself.

			l.dropped(droppedForAnother)
		})
		if c.member != nil {
			return c, nil
		}

		_ = conn.Close() // Nothing was said on it.

		l.dropped(droppedAtOnce)
	}
}

func (l *limited) newConn(conn net.Conn) *limitedConn {
	c := &limitedConn{Conn: conn, origin: crowd.Origin(conn.RemoteAddr().String()), closed: make(chan struct{})}
	if l.turns != nil {
		// The server gives the handshake that long, and the header of the first request once more.
		c.handshake.Store(l.turns.Worker(c.origin, time.Now().Add(2*readHeaderTimeout)))
	}

	return c
}

type limitedConn struct {
	net.Conn

	origin string
	member *crowd.Member
	closed chan struct{}
	once   sync.Once

	// handshake is nil from the first request on, and without TLS. It has a turn from a Read that returns something to the next Read or Write.
	handshake atomic.Pointer[crowd.Worker]
}

// Read returns what it has read when it is the connection's turn, up to its first request.
func (c *limitedConn) Read(b []byte) (int, error) {
	h := c.handshake.Load()
	if h == nil {
		return c.Conn.Read(b) //nolint:wrapcheck // It is that connection.
	}

	h.Rest()

	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err //nolint:wrapcheck // It is that connection.
	}

	err = h.Wait(c.closed)

	// It may have been closed meanwhile, and nobody else would end this turn.
	if c.handshake.Load() == nil {
		h.Rest()
	}

	return n, err //nolint:wrapcheck // It says why it can not be read.
}

// Write lets others have their turn, as it may have to wait for the other end.
func (c *limitedConn) Write(b []byte) (int, error) {
	if h := c.handshake.Load(); h != nil {
		h.Rest()
	}

	return c.Conn.Write(b) //nolint:wrapcheck // It is that connection.
}

// shaken ends the connection's turns: there was a request, or it is closed.
func (c *limitedConn) shaken() {
	if h := c.handshake.Swap(nil); h != nil {
		h.Rest()
	}
}

// Close gives the place back.
func (c *limitedConn) Close() error {
	c.shaken()
	c.member.Leave()

	return c.cut()
}

// cut closes the connection, whatever waits on it.
func (c *limitedConn) cut() error {
	c.once.Do(func() { close(c.closed) })

	return c.Conn.Close() //nolint:wrapcheck // It is that connection.
}

// connState follows which connections have a request, for [http.Server].ConnState. There is none before the handshake is over.
func connState(conn net.Conn, state http.ConnState) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}

	if c, ok := conn.(*limitedConn); ok {
		if state == http.StateActive {
			c.shaken()
		}

		c.member.SetBusy(state == http.StateActive)
	}
}
