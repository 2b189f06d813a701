package httpmtls

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// suspectFor is the time for which an address with a failed handshake comes last.
const suspectFor = 5 * time.Minute

// errSuspect is the error of a dial to an address that has to wait for the others.
var errSuspect = errors.New("an earlier TLS handshake with this address failed")

// suspects are the addresses of a name with which a TLS handshake failed. A [net.Dialer] takes the
// first address that accepts TCP. If a dead program or a path with a small MTU is behind it, the
// handshake fails each time, although another address of the name would answer.
type suspects struct {
	mu    sync.Mutex
	until map[string]time.Time // by IP address and port
}

// addAddress makes an address suspect for suspectFor, and forgets addresses that are suspect no
// longer.
func (s *suspects) addAddress(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := time.Now()
	for other, until := range s.until {
		if now.After(until) {
			delete(s.until, other)
		}
	}

	if s.until == nil {
		s.until = make(map[string]time.Time)
	}
	s.until[address] = now.Add(suspectFor)
}

func (s *suspects) hasAddress(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until[address])
}

func (s *suspects) clearAddresses() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.until)
}

// dialOthersFirst dials the addresses that are not suspect, and then all. It changes the dialer.
func (s *suspects) dialOthersFirst(
	ctx context.Context, dialer *net.Dialer, network, address string,
) (net.Conn, error) {
	var passedOver atomic.Bool // Two families of addresses are dialled in parallel.
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if !s.hasAddress(address) {
			return nil
		}

		passedOver.Store(true)
		return errSuspect
	}

	conn, err := dialer.DialContext(ctx, network, address)
	isFinal := !passedOver.Load() || ctx.Err() != nil
	if err == nil || isFinal {
		return conn, err
	}

	// No other address accepts a connection, so that each gets its turn again.
	s.clearAddresses()
	dialer.ControlContext = nil
	return dialer.DialContext(ctx, network, address)
}
