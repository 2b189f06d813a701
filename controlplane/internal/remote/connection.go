package remote

import (
	"net"
	"sync"
)

// meter counts the bytes that the connections of a runtime may still deliver.
type meter struct {
	mu   sync.Mutex
	left int
}

func (m *meter) refill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = maxRead
}

func (m *meter) spend(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left -= n; m.left < 0 {
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
