package admission

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// patience is how long a body waits for room: long for one that came at the same moment as others, short
// for an API server.
const patience = 250 * time.Millisecond

// keptCapacity is the largest buffer that is kept for the next request. Larger objects are rare, and not
// worth the memory between them.
const keptCapacity = 2 << 20

// steps are the sizes of buffers. A full buffer grows to the next one, so that room is charged for bytes
// that arrive and not for an announced length. From the fourth on, it grows to the one that fits the
// announced length: enough has arrived to believe it.
var steps = [...]int{
	4 << 10, 32 << 10, 256 << 10, believedFrom, 1 << 20, 3 << 19, keptCapacity, 3 << 20, 4 << 20, 6 << 20,
}

const believedFrom = 512 << 10

var errNoRoom = errors.New("too many large bodies at once")

// bodies reads request bodies into buffers that are used again.
type bodies struct {
	limit int64 // of one body
	room  *room
	pools []sync.Pool // one for each step
}

func newBodies(limit, total int64) *bodies {
	largest := limit + bytes.MinRead

	return &bodies{limit: limit, room: newRoom(max(total, largest+largest/timesLeft+1)), pools: make([]sync.Pool, len(steps))}
}

// body is a request body, or as much of it as was read. It must be given back when nothing refers to it.
type body struct {
	*bodies

	origin netip.Prefix
	data   []byte
}

// read returns the body. The error is an [http.MaxBytesError] when it has too many bytes, errNoRoom when it
// found no room, or that of the connection.
func (b *bodies) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	read := &body{bodies: b, origin: originOf(r)}

	if r.ContentLength > b.limit {
		return read, &http.MaxBytesError{Limit: b.limit}
	}

	return read, read.fill(http.MaxBytesReader(w, r.Body, b.limit), r)
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
			return err //nolint:wrapcheck // The caller looks for its type.
		}
	}
}

// grow replaces the buffer by a larger one, if there is room.
func (b *body) grow(r *http.Request, deadline time.Time) bool {
	size := nextSize(cap(b.data), r.ContentLength, b.limit)
	if !b.room.take(r.Context(), b.origin, int64(size-cap(b.data)), deadline) {
		return false
	}

	grown := append(b.buffer(size), b.data...)
	b.recycle(b.data)
	b.data = grown

	return true
}

// nextSize returns the next step. One byte beyond the limit shows that a body is too large.
func nextSize(size int, announced, limit int64) int {
	for _, step := range steps {
		if step > size && (step < believedFrom || int64(step) > announced) {
			return min(step, int(limit)+bytes.MinRead)
		}
	}

	return int(limit) + bytes.MinRead
}

func (b *bodies) buffer(size int) []byte {
	for i, step := range steps {
		if step == size {
			if kept, ok := b.pools[i].Get().(*[]byte); ok {
				return (*kept)[:0]
			}
		}
	}

	return make([]byte, 0, size)
}

func (b *bodies) recycle(data []byte) {
	for i, step := range steps {
		if step == cap(data) && step <= keptCapacity {
			b.pools[i].Put(&data)
		}
	}
}

// release gives the buffer and its room back.
func (b *body) release() {
	b.room.give(b.origin, int64(cap(b.data)))
	b.recycle(b.data)
	b.data = nil
}

// prefix is ample for the members of a review before its objects.
const prefix = 1 << 10

// skim reads the rest of a body that found no room, without keeping it, and returns the uid of the review,
// "" if the beginning is not that of one. The sender does not read an answer before.
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
