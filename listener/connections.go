package listener

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
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

// limitConnections returns a listener with at most so many connections open, and with bounded handshakes if there is TLS. It never
// stops to accept: the crowd decides who has to go.
func limitConnections(inner net.Listener, opts Options) net.Listener {
	l := &limited{
		Listener: inner, crowd: crowd.New(opts.MaxConnections), dropped: opts.Hooks.ConnectionDropped,
		handshakeTime: opts.ReadTimeout,
	}

	if l.dropped == nil {
		l.dropped = func(string) {}
	}

	if opts.TLS != nil {
		l.turns = crowd.NewTurns(opts.MaxHandshakes)
	}

	return l
}

type limited struct {
	net.Listener

	crowd         *crowd.Crowd
	dropped       func(reason string)
	turns         *crowd.Turns // nil without TLS
	handshakeTime time.Duration
}

// Accept returns the next connection that has a place.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}

		c := l.newConn(conn)

		c.member = l.crowd.Enter(c.origin, func() {
			_ = c.cut() // Its server finds out by itself.

			l.dropped(DroppedForAnother)
		})
		if c.member != nil {
			return c, nil
		}

		_ = conn.Close() // Nothing was said on it.

		l.dropped(DroppedAtOnce)
	}
}

func (l *limited) newConn(conn net.Conn) *limitedConn {
	c := &limitedConn{Conn: conn, origin: crowd.Origin(conn.RemoteAddr().String()), closed: make(chan struct{})}
	if l.turns != nil {
		c.handshake.Store(l.turns.Worker(c.origin, time.Now().Add(l.handshakeTime)))
	}

	return c
}

type limitedConn struct {
	net.Conn

	origin string
	member *crowd.Member
	known  atomic.Bool

	// handshake bounds what the connection costs before its first request: TLS is dear, and nobody is known yet. It computes from a Read that
	// returns something to the next Read or Write, and only has a turn for that time: TLS gathers what it has computed and writes it
	// at the end, so there is next to nothing to do between a Write and the Read that follows. It is nil from the first request on, and without TLS.
	handshake atomic.Pointer[crowd.Worker]

	// paused is until when nothing is read, in Unix nanoseconds.
	paused atomic.Int64
	closed chan struct{}
	once   sync.Once
}

// pauseTime is how long at most nothing is read from a connection after a request on it went beyond the share of its runtime. To
// answer costs processor time that others need, and a flood comes as fast as it is answered. What is not read fills the buffers of
// TCP, and then it is the flood that waits. A runtime that keeps to Retry-After, which is never less, does not notice.
const pauseTime = time.Second

// pause lets nothing be read from the connection for a while: half of it at random, or connections that were paused together would come back
// together.
func (c *limitedConn) pause() {
	c.paused.Store(time.Now().Add(pauseTime/2 + rand.N(pauseTime/2)).UnixNano()) //nolint:gosec // Nobody gains by guessing it.
}

// Read returns what it has read when it is the connection's turn, up to its first request, and after that when a pause is over: one may
// begin while it waits for the other end.
func (c *limitedConn) Read(b []byte) (int, error) {
	if h := c.handshake.Load(); h != nil {
		return c.readInTurn(h, b)
	}

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

func (c *limitedConn) readInTurn(h *crowd.Worker, b []byte) (int, error) {
	h.Rest()

	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err //nolint:wrapcheck // It is the connection's.
	}

	err = h.Wait(c.closed)

	// It may have been closed meanwhile, and nobody else would end this turn.
	if c.handshake.Load() == nil {
		h.Rest()
	}

	return n, err
}

// Write lets others have their turn, as it may have to wait for the other end.
func (c *limitedConn) Write(b []byte) (int, error) {
	if h := c.handshake.Load(); h != nil {
		h.Rest()
	}

	return c.Conn.Write(b) //nolint:wrapcheck // It is the connection's.
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

	return c.Conn.Close() //nolint:wrapcheck // It is the connection's.
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

// connState follows which connections have a request, for [http.Server].ConnState. There is none before the handshake is over.
func connState(conn net.Conn, state http.ConnState) {
	if c := limitedIn(conn); c != nil {
		if state == http.StateActive {
			c.shaken()
		}

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
