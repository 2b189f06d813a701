package main

import (
	"crypto/tls"
	"net"
	"net/http"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// Why a connection was closed before its time: values of a metric label.
const (
	droppedForAnother = "displaced"
	droppedAtOnce     = "no_place"
)

// limited is a listener with a bound on the open connections. It never stops to accept: when there is no place, whoever has the most
// connections loses one, see package crowd. The listener of the control plane does the same; neither may depend on the other.
type limited struct {
	net.Listener

	crowd   *crowd.Crowd
	dropped func(reason string)
}

// Accept returns the next connection that has a place.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // It is that listener.
		}

		member := l.crowd.Enter(crowd.Origin(conn.RemoteAddr().String()), func() {
			_ = conn.Close() // Its server finds out by itself.

			l.dropped(droppedForAnother)
		})
		if member != nil {
			return &limitedConn{conn, member}, nil
		}

		_ = conn.Close() // Nothing was said on it.

		l.dropped(droppedAtOnce)
	}
}

type limitedConn struct {
	net.Conn

	member *crowd.Member
}

// Close gives the place back.
func (c *limitedConn) Close() error {
	c.member.Leave()

	return c.Conn.Close() //nolint:wrapcheck // It is that connection.
}

// connState follows which connections have a request, for [http.Server].ConnState.
func connState(conn net.Conn, state http.ConnState) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}

	if c, ok := conn.(*limitedConn); ok {
		c.member.SetBusy(state == http.StateActive)
	}
}
