package listener

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

// Why a connection was closed before its time, as [Hooks].ConnectionDropped gets it.
const (
	// DroppedForAnother means that a newcomer took the place of a connection of whoever has the most.
	DroppedForAnother = "displaced"
	// DroppedAtOnce means that whoever has the most connections opened one more while all were busy.
	DroppedAtOnce = "no_place"
)

// limitConnections returns a listener with at most limit connections open. It never stops to accept: the crowd decides who has to go.
func limitConnections(inner net.Listener, limit int, dropped func(reason string)) net.Listener {
	if dropped == nil {
		dropped = func(string) {}
	}

	return &limited{Listener: inner, crowd: crowd.New(limit), dropped: dropped}
}

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
			return nil, err
		}

		member := l.crowd.Enter(originOf(conn.RemoteAddr()), func() {
			_ = conn.Close() // Its server finds out by itself.

			l.dropped(DroppedForAnother)
		})
		if member != nil {
			return &limitedConn{Conn: conn, member: member, closed: make(chan struct{})}, nil
		}

		_ = conn.Close() // Nothing was said on it.

		l.dropped(DroppedAtOnce)
	}
}

// originOf is the address without the port, and of IPv6 the network, in which one host may have any number of addresses (RFC 6177).
func originOf(remote net.Addr) string {
	const network = 64

	port, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return remote.String()
	}

	addr := port.Addr().Unmap()
	if addr.Is4() {
		return addr.String()
	}

	prefix, err := addr.WithZone("").Prefix(network)
	if err != nil {
		return addr.String()
	}

	return prefix.String()
}

type limitedConn struct {
	net.Conn

	member *crowd.Member
	known  atomic.Bool

	// paused is until when nothing is read, in Unix nanoseconds.
	paused atomic.Int64
	closed chan struct{}
	once   sync.Once
}

// pauseTime is how long nothing is read from a connection after a request on it went beyond the share of its runtime. To answer
// costs processor time that others need, and a flood comes as fast as it is answered. What is not read fills the buffers of TCP, and
// then it is the flood that waits. A runtime that keeps to Retry-After does not notice.
const pauseTime = 200 * time.Millisecond

// pause lets nothing be read from the connection for a while.
func (c *limitedConn) pause() { c.paused.Store(time.Now().Add(pauseTime).UnixNano()) }

// Read keeps what it reads until a pause is over: one may begin while it waits for the other end.
func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)

	// No clock that is set back makes it longer.
	if wait := min(time.Until(time.Unix(0, c.paused.Load())), pauseTime); wait > 0 && err == nil {
		over := time.NewTimer(wait)
		defer over.Stop()

		select {
		case <-over.C:
		case <-c.closed:
		}
	}

	return n, err //nolint:wrapcheck // It is the connection's.
}

// Close gives the place back.
func (c *limitedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.member.Leave()

	return c.Conn.Close()
}

// belongsTo counts the connection to a runtime from now on, whatever address it comes from.
func (c *limitedConn) belongsTo(runtime core.RuntimeID) {
	if c.known.CompareAndSwap(false, true) {
		c.member.Move("runtime " + string(runtime))
	}
}

// limitedIn returns what is behind a connection of a server, or nil if that is none of ours.
func limitedIn(conn net.Conn) *limitedConn {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}

	c, _ := conn.(*limitedConn)

	return c
}

// connState follows which connections have a request, for [http.Server].ConnState.
func connState(conn net.Conn, state http.ConnState) {
	if c := limitedIn(conn); c != nil {
		c.member.SetBusy(state == http.StateActive)
	}
}

type connKey struct{}

// connContext lets a request find its connection, for [http.Server].ConnContext.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, limitedIn(conn))
}

// claim counts the connection of a request to the runtime that sent it. A gateway's connection carries those of many.
func (l *Listener) claim(r *http.Request, runtime core.RuntimeID) {
	if c := l.ownConn(r); c != nil {
		c.belongsTo(runtime)
	}
}

// slowDown pauses the connection of a request that went beyond the share of its runtime.
func (l *Listener) slowDown(r *http.Request) {
	if c := l.ownConn(r); c != nil {
		c.pause()
	}
}

// ownConn returns the connection of a request if it carries nobody else's, as a gateway's does, and is one of Start's.
func (l *Listener) ownConn(r *http.Request) *limitedConn {
	if !l.needsTLS() {
		return nil
	}

	c, _ := r.Context().Value(connKey{}).(*limitedConn)

	return c
}
