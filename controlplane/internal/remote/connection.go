package remote

import (
	"net"
	"sync/atomic"
)

// meter counts the bytes that the connections of a runtime may still deliver.
type meter struct{ left atomic.Int64 }

func (m *meter) refill() { m.left.Store(maxRead) }

func (m *meter) spend(n int) error {
	if m.left.Add(-int64(n)) < 0 {
		return errLargeAnswer
	}
	return nil
}

// meteredConn ends when its runtime sends more than allowed.
type meteredConn struct {
	net.Conn

	meter *meter
}

// Read implements [net.Conn].
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if spent := c.meter.spend(n); spent != nil {
		_ = c.Close()
		return 0, spent
	}
	return n, err
}
