package httpserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection that has a slot of the limiter.
//
// Until its first request, a TLS connection also needs a slot of the fair queue to compute. The
// connection has this slot from a Read that returns data to the next Read or Write, because TLS
// computes only between these calls.
type conn struct {
	net.Conn

	// origin is the origin of the remote address. It does not change.
	origin   string
	assigned atomic.Bool
	slot     *slot
	// kept is reserved for the handler.
	kept atomic.Value

	// handshake is nil after the first request, and without TLS.
	handshake atomic.Pointer[handshake]
	// deadline is the read deadline. It is used while handshake is set.
	deadline atomic.Pointer[time.Time]
	// received means that a byte has arrived. It is used while handshake is set.
	received atomic.Bool

	// writeTimeout bounds a write without a deadline. TLS writes the answer to a KeyUpdate within
	// Read, and its Close waits for that write.
	writeTimeout time.Duration
	// bounded means that writes have a deadline.
	bounded atomic.Bool

	accepted time.Time
	// paused is a duration since accepted. No Read returns data before it has passed.
	paused atomic.Int64
	closed chan struct{}
	once   sync.Once
}

// newConn returns a connection without a slot. queue is nil without TLS.
func newConn(inner net.Conn, queue *fairQueue, opts Options) *conn {
	c := &conn{
		Conn: inner, origin: Origin(inner.RemoteAddr().String()), writeTimeout: opts.WriteTimeout,
		accepted: time.Now(), closed: make(chan struct{}),
	}
	if queue != nil {
		c.handshake.Store(&handshake{queue: queue, origin: c.origin, rest: opts.MaxHandshakeBytes})
	}
	return c
}

// Read returns data when the connection has a slot for its handshake, or when its pause is over.
func (c *conn) Read(b []byte) (int, error) {
	if h := c.handshake.Load(); h != nil {
		return c.readInSlot(h, b)
	}

	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}

	c.awaitPause()
	return n, nil
}

// readInSlot reads without a slot, and acquires one before it returns data.
func (c *conn) readInSlot(h *handshake, b []byte) (int, error) {
	h.releaseSlot()
	n, err := h.readWaiting(c.Conn, b)
	if err != nil {
		return n, err
	}

	c.received.Store(true)
	err = h.acquireSlot(c.Conn, c.closed, c.deadline.Load())

	// A concurrent Close has released no slot, and no later call would release this one.
	if c.handshake.Load() == nil {
		h.releaseSlot()
	}
	// TLS ignores an io.EOF that comes with data.
	if err != nil {
		return 0, err
	}

	return n, nil
}

func (c *conn) inSlot(compute func()) error {
	h := c.handshake.Load()
	if h == nil {
		return net.ErrClosed
	}

	h.releaseSlot()
	if err := h.acquireSlot(c.Conn, c.closed, c.deadline.Load()); err != nil {
		return err
	}
	defer h.releaseSlot()

	compute()
	return nil
}

// awaitPause runs after a read, because a pause may begin while a Read waits for data.
func (c *conn) awaitPause() {
	wait := time.Duration(c.paused.Load()) - time.Since(c.accepted)
	if wait <= 0 {
		return
	}

	over := time.NewTimer(wait)
	defer over.Stop()

	select {
	case <-over.C:
	case <-c.closed:
	}
}

// Write releases the slot of the handshake, because it may wait for the other end.
func (c *conn) Write(b []byte) (int, error) {
	if h := c.handshake.Load(); h != nil {
		h.answered.Store(true)
		h.releaseSlot()
	}

	if !c.bounded.Load() {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.writeTimeout)) // Write returns its error.
	}
	return c.Conn.Write(b)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.bounded.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

// SetReadDeadline implements [net.Conn]. The deadline also bounds the wait for a slot.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.handshake.Load() != nil {
		deadline := t // Later deadlines need no memory.
		c.deadline.Store(&deadline)
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) endHandshake() {
	if h := c.handshake.Swap(nil); h != nil {
		h.releaseSlot()
	}
}

// Close also frees the slots of the connection.
func (c *conn) Close() error {
	c.endHandshake()
	c.slot.release()
	return c.cut()
}

func (c *conn) cut() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// connOf returns nil for a connection of another server.
func connOf(outer net.Conn) *conn {
	c, _ := below(outer).(*conn)
	return c
}

type connKey struct{}

// withConn implements [net/http.Server.ConnContext].
func withConn(ctx context.Context, outer net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, connOf(outer))
}

// connFrom returns nil for a context of another server.
func connFrom(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// SetOrigin counts the connection of a request to an origin that is more exact than its address,
// such as the name in a client certificate. ctx is the context of the request. Only the first call
// for a connection counts. From then on, TCP closes the connection within 25 s when it is cut.
//
// It returns a channel that is closed with the connection, or nil for a request of another server.
func SetOrigin(ctx context.Context, origin string) (closed <-chan struct{}) {
	c := connFrom(ctx)
	if c == nil {
		return nil
	}
	if c.assigned.CompareAndSwap(false, true) {
		c.slot.moveToOrigin(origin)
		probe(c.Conn)
	}
	return c.closed
}

// The probes of a connection. The third probe without an answer ends the connection.
const probeAfter, probeEvery, probes = 10 * time.Second, 5 * time.Second, 3

// probe makes TCP find a cut path. Probes do so while the connection is idle, and boundSilence
// while the other end has data to acknowledge.
func probe(c net.Conn) {
	if tcp, ok := c.(interface {
		SetKeepAliveConfig(config net.KeepAliveConfig) error
	}); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{ // It fails for a closed connection.
			Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes,
		})
		boundSilence(c, probeAfter+probes*probeEvery)
	}
}

// Kept returns a place for a value that a handler keeps with the connection of a request. ctx is
// the context of the request. It returns nil for a request of another server.
func Kept(ctx context.Context) *atomic.Value {
	if c := connFrom(ctx); c != nil {
		return &c.kept
	}
	return nil
}

// PauseReads stops reading from the connection of a request for a while, so that TCP slows down its
// sender. ctx is the context of the request. It does not block, and a later call replaces the
// pause. It does nothing for a request of another server.
func PauseReads(ctx context.Context, pause time.Duration) {
	if c := connFrom(ctx); c != nil {
		c.paused.Store(int64(time.Since(c.accepted) + pause))
	}
}

// Origin returns the origin of a remote address: the IPv4 address without its port, or the IPv6
// /64 network. One host may use any address in that network (RFC 6177). Other strings are returned
// unchanged.
func Origin(remote string) string {
	const network = 64
	port, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}

	addr := port.Addr().Unmap()
	if addr.Is4() {
		return addr.String()
	}

	prefix, _ := addr.WithZone("").Prefix(network) // An IPv6 address has more bits.
	return prefix.String()
}

// below returns the connection that TLS uses, or the given one.
func below(outer net.Conn) net.Conn {
	if encrypted, ok := outer.(interface{ NetConn() net.Conn }); ok {
		return encrypted.NetConn()
	}
	return outer
}
