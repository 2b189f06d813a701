package admission

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"
)

// patience is how long a body waits for memory. It is long enough for bodies that arrive at the
// same moment, and short for an API server.
const patience = 250 * time.Millisecond

// keptCapacity is the largest buffer in bytes that is kept for the next request. Larger objects are
// rare, so their buffers would waste memory. Those are charged until the collector has freed them.
const keptCapacity = 2 << 20

// steps are the sizes of buffers in bytes. A full buffer grows to the next step, so that memory is
// charged for bytes that arrive and not for an announced length. Above 512 KiB, the buffer grows to
// the announced length, because enough bytes have arrived to trust it.
var steps = [...]int{
	4 << 10, 32 << 10, 256 << 10, believedFrom, 1 << 20, 3 << 19, keptCapacity, 3 << 20, 4 << 20, 6 << 20,
}

// believedFrom is the step from which the announced length counts.
const believedFrom = 512 << 10

var errNoRoom = errors.New("too many large bodies at once")

// bodies reads request bodies into buffers that are reused. It is safe for concurrent use.
type bodies struct {
	// limit bounds one body, in bytes.
	limit int64
	room  *room
	// pools has one pool for each size that is kept.
	pools map[int]*sync.Pool
}

// newBodies returns a reader with room for at least one body of the limit per origin.
func newBodies(limit, total int64) *bodies {
	largest := limit + bytes.MinRead
	size := max(total, largest+largest/timesLeft+1)
	b := &bodies{limit: limit, pools: make(map[int]*sync.Pool), room: &room{
		size: size, held: make(map[netip.Prefix]int64), garbage: make(map[*discarded]struct{}),
	}}
	for _, step := range steps {
		if step <= keptCapacity {
			b.pools[min(step, int(largest))] = new(sync.Pool)
		}
	}
	return b
}

// body is a request body, or the part of it that was read. The caller must call release when
// nothing refers to data any more. It is not safe for concurrent use.
type body struct {
	*bodies

	// origin is charged for the capacity of data.
	origin netip.Prefix
	data   []byte
}

// read returns the body, also with an error. The error is an [http.MaxBytesError] for too many
// bytes, errNoRoom without memory, or an error of the connection.
func (b *bodies) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	read := &body{bodies: b, origin: originOf(r)}

	// An announced length above the limit is refused before anything is read.
	if r.ContentLength > b.limit {
		return read, &http.MaxBytesError{Limit: b.limit}
	}
	err := read.fill(http.MaxBytesReader(w, r.Body, b.limit), r)
	return read, err
}

func (b *body) fill(from io.Reader, r *http.Request) error {
	deadline := time.Now().Add(patience)
	for {
		if len(b.data) == cap(b.data) && !b.grow(r, deadline) {
			return errNoRoom
		}
		n, err := from.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err // The caller needs its type.
		}
	}
}

// grow replaces the buffer by a larger one. It reports whether there was memory for that.
func (b *body) grow(r *http.Request, deadline time.Time) bool {
	size := nextSize(cap(b.data), r.ContentLength, b.limit)
	if !b.room.take(r.Context(), b.origin, int64(size-cap(b.data)), deadline) {
		return false
	}
	old := b.data
	b.data = append(b.buffer(size), old...)
	b.recycle(old)
	return true
}

// nextSize exceeds the limit at last, so that a body that is too large is detected.
func nextSize(size int, announced, limit int64) int {
	for _, step := range steps {
		if step > size && (step < believedFrom || int64(step) > announced) {
			return min(step, int(limit)+bytes.MinRead)
		}
	}
	return int(limit) + bytes.MinRead
}

func (b *bodies) buffer(size int) []byte {
	if pool := b.pools[size]; pool != nil {
		if kept, ok := pool.Get().(*[]byte); ok {
			return (*kept)[:0]
		}
	}
	return make([]byte, 0, size)
}

func (b *body) recycle(data []byte) {
	if pool := b.pools[cap(data)]; pool != nil {
		pool.Put(&data)
	} else if data != nil {
		b.room.discard(b.origin, data)
	}
}

// release returns the buffer and its memory. It must be called once.
func (b *body) release() {
	data := b.data
	b.data = nil // Before others may collect it.
	b.recycle(data)
	b.room.give(b.origin, int64(cap(data)))
}

// prefix is the number of bytes in which the uid of a review is searched. The fields before the
// objects are shorter.
const prefix = 1 << 10

// skim reads the rest of a body and discards it, because the sender reads no answer before. It
// returns the uid of the review, or "" if the body does not begin like a review.
func (b *body) skim(rest io.Reader) (uid string) {
	var beginning [prefix]byte
	n := copy(beginning[:], b.data)
	m, err := io.ReadFull(rest, beginning[n:])
	if err == nil {
		_, err = io.Copy(io.Discard, rest)
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return ""
	}
	return uidOf(beginning[:n+m])
}

// room bounds the bytes of all bodies together. An origin may hold four times the bytes that are
// left then. So one origin leaves a fifth of the room to others, and two leave a fifth of that. It
// is safe for concurrent use.
type room struct {
	// size is the number of bytes in all. It does not change.
	size int64

	mu    sync.Mutex
	taken int64
	held  map[netip.Prefix]int64
	// garbage has the buffers that no body uses, and that the collector has not freed yet.
	garbage map[*discarded]struct{}
	// freed is closed when bytes are returned. It is nil while no call of take waits.
	freed chan struct{}
}

// discarded is a buffer that is charged to an origin until the collector has freed it.
type discarded struct {
	origin netip.Prefix
	size   int64
}

// timesLeft bounds the bytes of an origin: it is their largest ratio to the bytes that are left.
// The smallest room has a quarter more than the largest body, so that this body fits.
const timesLeft = 4

// take blocks until there is room. It reports false when ctx ends or the deadline passes.
func (r *room) take(ctx context.Context, origin netip.Prefix, n int64, deadline time.Time) bool {
	for {
		freed := r.tryTake(origin, n)
		if freed != nil && r.collect() {
			freed = r.tryTake(origin, n)
		}
		if freed == nil {
			return true
		}
		select {
		case <-freed:
		case <-time.After(time.Until(deadline)):
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// tryTake returns nil if it charged, else a channel that is closed when bytes are returned.
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

// settle uncharges a buffer that is freed, unless collect does.
func (r *room) settle(d *discarded) {
	r.mu.Lock()
	_, charged := r.garbage[d]
	delete(r.garbage, d)
	r.mu.Unlock()
	if charged {
		r.give(d.origin, d.size)
	}
}

func (r *room) collect() bool {
	r.mu.Lock()
	garbage := r.garbage
	r.garbage = make(map[*discarded]struct{})
	r.mu.Unlock()
	if len(garbage) == 0 {
		return false
	}
	runtime.GC() // It returns when all that is unreachable is free.
	for d := range garbage {
		r.give(d.origin, d.size)
	}
	return true
}

// originBits is the size of an IPv6 network that one client may own.
const originBits = 64

// originOf returns the IPv6 network of a client. Clients without address share one origin.
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
