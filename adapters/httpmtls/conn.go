package httpmtls

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// trackedConn is a connection of a pool. It reports its end.
type trackedConn struct {
	net.Conn

	made time.Time
	// remove takes the connection out of its pool, and is false if the pool closes it for its own
	// reasons. Otherwise disconnected is called.
	remove       func(*trackedConn) (lost bool)
	disconnected func(hook.Disconnection)
	// received means that the other end has sent something.
	received atomic.Bool
}

func (c *trackedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if n > 0 && !c.received.Load() {
		c.received.Store(true)
	}
	return n, err
}

func (c *trackedConn) Close() error {
	if c.remove(c) {
		defer func() { c.disconnected(hook.Disconnection{Lasted: time.Since(c.made)}) }()
	}
	return c.Conn.Close()
}
