package listener

import (
	"net"
	"sync"
)

// limitConnections returns a listener that accepts a connection only while fewer than limit are open.
func limitConnections(inner net.Listener, limit int) net.Listener {
	return &limited{Listener: inner, slots: make(chan struct{}, limit), closed: make(chan struct{})}
}

type limited struct {
	net.Listener

	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a slot, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}

	conn, err := l.Listener.Accept()
	if err != nil {
		l.release()

		return nil, err
	}

	return &limitedConn{Conn: conn, release: sync.OnceFunc(l.release)}, nil
}

// Close ends Accept, also while it waits for a slot.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })

	return l.Listener.Close()
}

func (l *limited) release() { <-l.slots }

type limitedConn struct {
	net.Conn

	release func()
}

// Close gives the slot back, once.
func (c *limitedConn) Close() error {
	defer c.release()

	return c.Conn.Close()
}
