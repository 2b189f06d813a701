package rig

import (
	"io"
	"log"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Fault is what is wrong with a [Plane].
type Fault string

// The faults of a control plane.
const (
	// Up is none.
	Up Fault = "up"
	// Refusing means that nobody listens. Connections that there are get lost.
	Refusing Fault = "refused"
	// Unavailable answers 503.
	Unavailable Fault = "503"
	// TooFast answers 429 and asks for a second of patience.
	TooFast Fault = "429"
	// Forbidden answers 403.
	Forbidden Fault = "403"
	// Hanging takes requests and never answers.
	Hanging Fault = "hanging"
	// HalfOpen means that what is sent on a connection goes nowhere, and that nothing comes back.
	// Connections made before or meanwhile stay like that when the fault ends.
	HalfOpen Fault = "half-open"
	// NoHandshake accepts connections and never says a word.
	NoHandshake Fault = "no handshake"
	// OtherCA presents a certificate that the agent does not trust.
	OtherCA Fault = "other CA"
	// OtherName presents a certificate for somebody else.
	OtherName Fault = "other name"
	// Slow takes 5 s for an answer.
	Slow Fault = "5 s slow"
)

const slowness = 5 * time.Second

// door is a [net.Listener] on one port that can be closed and opened again, and that knows the
// faults of connections.
type door struct {
	port   int
	holder int // a socket that is bound, and never listens
	conns  chan net.Conn
	done   chan struct{}
	once   sync.Once
	t      testing.TB

	mu      sync.Mutex
	current Fault
	inner   net.Listener
	open    map[*doorConn]struct{}
	accepts sync.WaitGroup
}

func newDoor(t testing.TB) *door {
	t.Helper()
	d := &door{
		conns: make(chan net.Conn), done: make(chan struct{}),
		t: t, current: Refusing, open: make(map[*doorConn]struct{}),
	}

	var err error
	if d.holder, d.port, err = reservePort(); err != nil {
		t.Fatal(err)
	}

	d.set(Up)
	return d
}

func (d *door) fault() Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

func (d *door) set(fault Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.current
	d.current = fault
	switch {
	case fault == HalfOpen:
		for conn := range d.open {
			conn.die()
		}
	case fault == Refusing, fault == NoHandshake, fault == OtherCA, fault == OtherName, before == NoHandshake:
		d.cut()
	}

	d.listen(fault != Refusing)
}

// cut loses all connections but the dead ones, whose end nobody would hear of.
func (d *door) cut() {
	for conn := range d.open {
		if !conn.isDead() {
			_ = conn.Conn.Close() // Whoever reads from it notices.
		}
	}
}

func (d *door) listen(wanted bool) {
	switch {
	case wanted && d.inner == nil:
		inner, err := net.Listen("tcp", Address(d.port))
		if err != nil {
			d.t.Errorf("plane: %v", err)
			return
		}

		d.inner = inner

		d.accepts.Go(func() { d.accept(inner) })
	case !wanted && d.inner != nil:
		_ = d.inner.Close() // It listened.
		d.inner = nil
	}
}

func (d *door) accept(inner net.Listener) {
	for {
		conn, err := inner.Accept()
		if err != nil {
			return
		}

		if tracked := d.track(conn); tracked != nil {
			select {
			case d.conns <- tracked:
			case <-d.done:
				_ = tracked.Close() // Nobody serves it any more.
			}
		}
	}
}

// track returns the connection to serve, or nil when the fault is that nobody does.
func (d *door) track(conn net.Conn) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	tracked := &doorConn{Conn: conn, door: d, dead: make(chan struct{})}
	d.open[tracked] = struct{}{}
	switch d.current {
	case Refusing:
		_ = tracked.Conn.Close() // It came at the last moment.
		return nil
	case HalfOpen:
		tracked.die()
		return nil
	case NoHandshake:
		return nil
	default:
		return tracked
	}
}

// Accept implements [net.Listener].
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (d *door) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

// Addr implements [net.Listener].
func (d *door) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: d.port} }

// shut ends everything.
func (d *door) shut() {
	_ = d.Close() // It never fails.

	d.mu.Lock()
	d.listen(false)
	for conn := range d.open {
		_ = conn.Conn.Close() // Nobody needs it.
	}
	d.mu.Unlock()

	d.accepts.Wait()

	_ = syscall.Close(d.holder) // It was bound only.
}

// doorConn is a connection that can die without a word.
type doorConn struct {
	net.Conn

	door *door
	once sync.Once
	dead chan struct{}
}

func (c *doorConn) die() { c.once.Do(func() { close(c.dead) }) }

func (c *doorConn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// Read loses what arrives on a dead connection.
func (c *doorConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.isDead() {
			return n, err
		}
	}
}

// Write loses what is sent on a dead connection.
func (c *doorConn) Write(b []byte) (int, error) {
	if c.isDead() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Close leaves a dead connection open: its end would be a word.
func (c *doorConn) Close() error {
	if c.isDead() {
		_ = c.SetReadDeadline(time.Now()) // Lets its server go.
		return nil
	}

	c.door.mu.Lock()
	delete(c.door.open, c)
	c.door.mu.Unlock()
	return c.Conn.Close()
}

// quiet discards what an HTTP server has to say about faults that are made.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
