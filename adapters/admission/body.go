package admission

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// patience is how long a body waits for memory. It is long enough for bodies that arrive at the
// same moment, and short for an API server.
const patience = 250 * time.Millisecond

var errNoRoom = errors.New("too many large bodies in parallel")

// bodies reads request bodies into buffers that are reused. It is safe for concurrent use.
type bodies struct {
	// limit bounds one body, in bytes.
	limit int64
	room  *room
}

// newBodies returns a reader with room for at least one body of the limit per origin.
func newBodies(limit, total int64) *bodies {
	largest := limit + bytes.MinRead
	return &bodies{limit: limit, room: newRoom(max(total, largest+largest/timesLeft+1), int(largest))}
}

// body is a request body, or the part of it that was read. The caller must call releaseBuffer when
// nothing refers to data any more. It is not safe for concurrent use.
type body struct {
	*bodies

	// origin is charged for the capacity of data.
	origin netip.Prefix
	data   []byte
}

// readBody returns the body, also with an error. The error is an [http.MaxBytesError] for too many
// bytes, errNoRoom without memory, or an error of the connection.
func (b *bodies) readBody(w http.ResponseWriter, r *http.Request) (*body, error) {
	read := &body{bodies: b, origin: originOf(r)}

	// An announced length above the limit is refused before anything is read.
	if r.ContentLength > b.limit {
		return read, &http.MaxBytesError{Limit: b.limit}
	}

	err := read.fillBuffer(http.MaxBytesReader(w, r.Body, b.limit), r)
	return read, err
}

// fillBuffer reads to the end, and grows the buffer as bytes arrive.
func (b *body) fillBuffer(from io.Reader, r *http.Request) error {
	deadline := time.Now().Add(patience)
	for {
		if len(b.data) == cap(b.data) && !b.growBuffer(r, deadline) {
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

// growBuffer replaces the buffer by a larger one. It reports whether there was memory for that.
func (b *body) growBuffer(r *http.Request, deadline time.Time) bool {
	size := nextSize(cap(b.data), r.ContentLength, b.limit)
	larger, ok := b.room.replaceBuffer(r.Context(), b.origin, b.data, size, deadline)
	b.data = larger

	return ok
}

// nextSize exceeds the limit at last, so that a body that is too large is detected.
func nextSize(size int, announced, limit int64) int {
	for _, step := range steps {
		isBelieved := step < believedFrom || int64(step) > announced
		if step > size && isBelieved {
			return min(step, int(limit)+bytes.MinRead)
		}
	}
	return int(limit) + bytes.MinRead
}

// releaseBuffer returns the buffer and its memory. It must be called once.
func (b *body) releaseBuffer() {
	data := b.data
	b.data = nil // Before others may collect it.
	b.room.returnBuffer(b.origin, data)
}

// prefix is the number of bytes in which the uid of a review is searched. The fields before the
// objects are shorter.
const prefix = 1 << 10

// skimRest reads the rest of a body and discards it, because the sender reads no answer before. It
// returns the uid of the review, or "" if the body does not begin like a review.
func (b *body) skimRest(rest io.Reader) (uid string) {
	var beginning [prefix]byte
	n := copy(beginning[:], b.data)
	m, err := readToEnd(rest, beginning[n:])

	isEnd := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	if err != nil && !isEnd {
		return ""
	}

	return uidOf(beginning[:n+m])
}

// readToEnd fills a buffer, and discards the bytes behind it.
func readToEnd(from io.Reader, into []byte) (n int, err error) {
	n, err = io.ReadFull(from, into)
	if err != nil {
		return n, err
	}

	_, err = io.Copy(io.Discard, from)
	return n, err
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

	prefix, _ := addr.Prefix(bits) // bits is at most the size of the address.
	return prefix
}
