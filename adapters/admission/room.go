package admission

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// room is a number of bytes that all bodies share. It bounds the memory of a webhook. An origin may hold
// four times the bytes that are left then. So one origin leaves a fifth of the room to others, and two
// leave a fifth of that.
type room struct {
	size int64

	mu    sync.Mutex
	taken int64
	held  map[netip.Prefix]int64
	freed chan struct{} // closed when there is more; nil while no body waits
}

func newRoom(size int64) *room { return &room{size: size, held: make(map[netip.Prefix]int64)} }

// timesLeft is how often the bytes that are left an origin may hold. The smallest room has a quarter
// more than the largest body, so that this body fits.
const timesLeft = 4

// take charges n bytes to an origin. It waits for room, at most until the deadline or the end of ctx, and
// reports whether there was some.
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

// tryTake returns nil if it charged n bytes, and else a channel that is closed when there is more room.
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

// give returns n bytes, and lets waiting bodies try again.
func (r *room) give(origin netip.Prefix, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.taken -= n

	if r.held[origin] -= n; r.held[origin] == 0 {
		delete(r.held, origin)
	}

	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// originBits is the size of a network that one client may own, of IPv6.
const originBits = 64

// originOf returns the address of the client, of IPv6 its network. All clients without an address are one.
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
