package admission

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
)

// room bounds the bytes of all buffers together: buffers of bodies, buffers that are kept for the
// next body, and buffers that the collector has not freed yet. An origin may hold four times the
// bytes that are left then. So one origin leaves a fifth of the room to others, and two leave a
// fifth of that. It is safe for concurrent use.
type room struct {
	// size bounds the bytes that are charged to origins, and memory those and the kept ones. Both
	// do not change. They differ only in the smallest rooms, where the largest body must fit in
	// addition to the buffer that it replaces.
	size, memory int64

	mu sync.Mutex
	// taken counts the bytes that are charged to origins, and held counts the bytes of each origin.
	taken int64
	held  map[netip.Prefix]int64
	// idle contains the buffers that no body uses by their size, the last used one last. There is
	// an entry for each size that is kept. The entries do not change, so they are found without
	// lock.
	idle map[int]*[]idleBuffer
	// kept contains the bytes of idle buffers, and of former ones that the collector has not freed
	// yet. No origin is charged for them.
	kept int64
	// garbage contains the buffers that are neither used nor idle, and that the collector has not
	// freed yet.
	garbage map[*discarded]struct{}
	// freed is closed when bytes are returned. It is nil while no call of replaceBuffer waits.
	freed chan struct{}
}

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

// idleBuffer is a buffer that is kept for the next body.
type idleBuffer struct {
	bytes []byte
	since time.Time
}

// discarded is a buffer that is charged until the collector has freed it: to an origin, or as kept.
type discarded struct {
	origin netip.Prefix
	size   int64
	kept   bool
}

// idleTime is how long a buffer is kept. After that, the end of another body discards it.
const idleTime = time.Minute

// timesLeft bounds the bytes of an origin: it is their largest ratio to the bytes that are left.
// The smallest room has a quarter more than the largest body, so that this body fits.
const timesLeft = 4

func newRoom(size int64, largest int) *room {
	r := &room{
		size:   size,
		memory: max(size, int64(largest+min(largest, believedFrom))),
		idle:   make(map[int]*[]idleBuffer),
		held:   make(map[netip.Prefix]int64), garbage: make(map[*discarded]struct{}),
	}
	for _, step := range steps {
		if step <= keptCapacity {
			r.idle[min(step, largest)] = new([]idleBuffer)
		}
	}
	return r
}

// replaceBuffer returns a buffer of that size with the bytes of the former one, which it takes
// over. It charges the origin for the difference. It blocks until there is room. It returns false,
// and the former buffer, when ctx ends or the deadline passes.
func (r *room) replaceBuffer(
	ctx context.Context, origin netip.Prefix, former []byte, size int, deadline time.Time,
) ([]byte, bool) {
	need := demand{origin: origin, more: int64(size - cap(former)), size: int64(size), idle: r.idleSize(former)}
	larger, ok := r.reserveBuffer(ctx, need, deadline)
	if !ok {
		return former, false
	}
	if larger == nil {
		larger = make([]byte, 0, size)
	}

	larger = append(larger, former...)
	r.recycleBuffer(origin, former)
	return larger, true
}

// demand is the memory that a larger buffer needs.
type demand struct {
	origin netip.Prefix
	// more is charged to the origin.
	more int64
	size int64
	// idle is the part of the former buffer that will be idle.
	idle int64
}

// reserveBuffer charges for a buffer, and returns an idle one if there is one. It blocks until
// there is room. It reports false when ctx ends or the deadline passes.
func (r *room) reserveBuffer(ctx context.Context, need demand, deadline time.Time) (idle []byte, ok bool) {
	for {
		idle, freed := r.tryTake(need)
		if freed != nil && r.collectGarbage() {
			idle, freed = r.tryTake(need)
		}
		if freed == nil {
			return idle, true
		}

		select {
		case <-freed:
		case <-time.After(time.Until(deadline)):
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

// tryTake returns nil for freed if it charged, else a channel that is closed when bytes are
// returned.
func (r *room) tryTake(need demand) (idle []byte, freed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()

	taken := r.taken + need.more
	isFair := r.held[need.origin]+need.more <= (r.size-taken)*timesLeft
	all := r.idle[int(need.size)]
	// A buffer that is idle exists already. A new buffer exists in addition to the former buffer
	// for a moment.
	reuses := all != nil && len(*all) > 0
	fits := reuses || taken+r.kept+need.idle <= r.memory
	if !isFair || !fits {
		if r.freed == nil {
			r.freed = make(chan struct{})
		}
		return nil, r.freed
	}

	r.taken = taken
	r.held[need.origin] += need.more
	r.kept += need.idle

	if !reuses {
		return nil, nil
	}

	last := len(*all) - 1
	idle = (*all)[last].bytes
	(*all)[last] = idleBuffer{}
	*all = (*all)[:last]
	r.kept -= need.size

	return idle, nil
}

// idleSize returns the bytes of a buffer that count as kept when no body uses it any more.
func (r *room) idleSize(former []byte) int64 {
	if _, isKept := r.idle[cap(former)]; isKept {
		return int64(cap(former))
	}
	return 0
}

// recycleBuffer keeps a buffer that is replaced, or discards it.
func (r *room) recycleBuffer(origin netip.Prefix, former []byte) {
	switch {
	case former == nil:
	case r.idleSize(former) == 0:
		r.discardBuffer(former, &discarded{origin: origin, size: int64(cap(former))})
	default:
		r.mu.Lock()
		all := r.idle[cap(former)]
		*all = append(*all, idleBuffer{former[:0], time.Now()})
		r.mu.Unlock()
	}
}

// returnBuffer takes the buffer of a body that has ended, and wakes all calls of replaceBuffer that
// wait.
func (r *room) returnBuffer(origin netip.Prefix, former []byte) {
	if former == nil {
		return
	}

	r.dropIdle(time.Now().Add(-idleTime))

	r.mu.Lock()
	r.kept += r.idleSize(former)
	r.mu.Unlock()
	r.recycleBuffer(origin, former)
	r.unchargeBuffer(&discarded{origin: origin, size: int64(cap(former))})
}

// unchargeBuffer returns the bytes of a buffer, and wakes all calls of replaceBuffer that wait.
func (r *room) unchargeBuffer(d *discarded) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if d.kept {
		r.kept -= d.size
	} else {
		r.taken -= d.size
		r.held[d.origin] -= d.size
	}

	// An origin without bytes is deleted, so that the map does not grow with foreign addresses.
	if r.held[d.origin] == 0 {
		delete(r.held, d.origin)
	}

	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// discardBuffer charges a buffer until the collector has freed it. The caller must not use it any
// more. A kept buffer is charged already.
func (r *room) discardBuffer(bytes []byte, d *discarded) {
	r.mu.Lock()
	if !d.kept {
		r.taken += d.size
		r.held[d.origin] += d.size
	}

	r.garbage[d] = struct{}{}
	r.mu.Unlock()
	runtime.AddCleanup(&bytes[:1][0], r.settleFreed, d)
}

// dropIdle discards the buffers that are idle since a time before.
func (r *room) dropIdle(before time.Time) {
	r.mu.Lock()
	var old [][]byte

	for _, all := range r.idle {
		n := 0
		for n < len(*all) && !(*all)[n].since.After(before) {
			old = append(old, (*all)[n].bytes)
			n++
		}

		*all = slices.Delete(*all, 0, n)
	}

	r.mu.Unlock()

	for _, bytes := range old {
		r.discardBuffer(bytes, &discarded{size: int64(cap(bytes)), kept: true})
	}
}

// settleFreed uncharges a buffer that is freed, unless collectGarbage does.
func (r *room) settleFreed(d *discarded) {
	r.mu.Lock()
	_, charged := r.garbage[d]
	delete(r.garbage, d)
	r.mu.Unlock()

	if charged {
		r.unchargeBuffer(d)
	}
}

// collectGarbage runs the garbage collector. It frees all buffers that no body uses, and reports
// whether there were any.
func (r *room) collectGarbage() bool {
	r.dropIdle(time.Now())

	r.mu.Lock()
	garbage := r.garbage
	r.garbage = make(map[*discarded]struct{})
	r.mu.Unlock()
	if len(garbage) == 0 {
		return false
	}

	runtime.GC() // It returns when all that is unreachable is free.
	for d := range garbage {
		r.unchargeBuffer(d)
	}

	return true
}
