package admission

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// room bounds the bytes of all bodies together. An origin may hold four times the bytes that are
// left then. So one origin leaves a fifth of the room to others, and two leave a fifth of that. It
// is safe for concurrent use.
type room struct {
	// size is the number of bytes in all. It does not change.
	size int64

	// mu guards the fields below.
	mu    sync.Mutex
	taken int64
	held  map[netip.Prefix]int64
	// freed is closed when bytes are returned. It is nil while no call of take waits.
	freed chan struct{}
}

// newRoom returns a room of size bytes, all of them free.
func newRoom(size int64) *room { return &room{size: size, held: make(map[netip.Prefix]int64)} }

// timesLeft bounds the bytes of an origin: it is their largest ratio to the bytes that are left.
// The smallest room has a quarter more than the largest body, so that this body fits.
const timesLeft = 4

// take charges n bytes to an origin, and reports whether it did. It blocks until there is room, ctx
// ends or the deadline passes.
func (r *room) take(ctx context.Context, origin netip.Prefix, n int64, deadline time.Time) bool {
	freed := r.tryTake(origin, n)
	if freed == nil {
		return true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for freed != nil {
		select {
		case <-freed:
			freed = r.tryTake(origin, n)
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// tryTake returns nil if it charged n bytes. Otherwise it returns a channel that is closed when
// bytes are returned.
func (r *room) tryTake(origin netip.Prefix, n int64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left := r.size - r.taken - n; r.held[origin]+n <= left*timesLeft {
		r.taken += n
		r.held[origin] += n
		return nil
	}
	if r.freed == nil {
		r.freed = make(chan struct{})
	}
	return r.freed
}

// give returns n bytes, and wakes all calls of take that wait.
func (r *room) give(origin netip.Prefix, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= n
	// An origin without bytes is deleted, so that the map does not grow with foreign addresses.
	if r.held[origin] -= n; r.held[origin] == 0 {
		delete(r.held, origin)
	}
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// originBits is the size of an IPv6 network that one client may own.
const originBits = 64

// originOf returns the IPv4 address or the IPv6 network of the client. Clients without an address
// share one origin.
func originOf(r *http.Request) netip.Prefix {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = originBits
	}
	prefix, _ := addr.Prefix(bits) // The size is that of the address, or less.
	return prefix
}
