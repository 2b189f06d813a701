package admission

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
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
	// garbage has the buffers that no body uses, and that the collector has not freed yet.
	garbage map[*discarded]struct{}
	// freed is closed when bytes are returned. It is nil while no call of take waits.
	freed chan struct{}

	// collecting lets one call of collect run at a time.
	collecting sync.Mutex
}

// discarded is a buffer that is charged to an origin until the collector has freed it.
type discarded struct {
	origin netip.Prefix
	size   int64
}

// timesLeft bounds the bytes of an origin: it is their largest ratio to the bytes that are left.
// The smallest room has a quarter more than the largest body, so that this body fits.
const timesLeft = 4

// take charges n bytes to an origin, and reports whether it did. It blocks until there is room, ctx
// ends or the deadline passes.
func (r *room) take(ctx context.Context, origin netip.Prefix, n int64, deadline time.Time) bool {
	freed := r.tryTakeOrCollect(origin, n)
	if freed == nil {
		return true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for freed != nil {
		select {
		case <-freed:
			freed = r.tryTakeOrCollect(origin, n)
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// tryTakeOrCollect is tryTake, which also frees discarded buffers if it finds no room.
func (r *room) tryTakeOrCollect(origin netip.Prefix, n int64) <-chan struct{} {
	freed := r.tryTake(origin, n)
	if freed != nil && r.collect() {
		freed = r.tryTake(origin, n)
	}
	return freed
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
	r.subtract(origin, n)
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// subtract uncharges n bytes. The caller must hold the lock.
func (r *room) subtract(origin netip.Prefix, n int64) {
	r.taken -= n
	// An origin without bytes is deleted, so that the map does not grow with foreign addresses.
	if r.held[origin] -= n; r.held[origin] == 0 {
		delete(r.held, origin)
	}
}

// discard charges a buffer until the collector has freed it. The caller must not use it any more.
func (r *room) discard(origin netip.Prefix, buffer []byte) {
	d := &discarded{origin, int64(cap(buffer))}
	r.mu.Lock()
	r.taken += d.size
	r.held[origin] += d.size
	r.garbage[d] = struct{}{}
	r.mu.Unlock()
	runtime.AddCleanup(&buffer[:1][0], r.settle, d)
}

// settle uncharges a buffer that is freed. It wakes no call of take, each of which has collected.
func (r *room) settle(d *discarded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, charged := r.garbage[d]; charged {
		delete(r.garbage, d)
		r.subtract(d.origin, d.size)
	}
}

// collect frees the discarded buffers, and reports whether there were any.
func (r *room) collect() bool {
	r.collecting.Lock()
	defer r.collecting.Unlock()
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.garbage))
	r.mu.Unlock()
	if len(all) == 0 {
		return false
	}
	runtime.GC() // It returns when all that is unreachable is free.
	for _, d := range all {
		r.settle(d)
	}
	return true
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
