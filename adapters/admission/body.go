package admission

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// believedLength is up to where room is made for what Content-Length announces before it has arrived: whoever announces more has
	// to send it, too. Buffers that are used again have more room.
	believedLength = 64 << 10
	// keptCapacity is the largest buffer that is kept for the next request. Larger objects are rare, and not worth the memory between
	// them; objects of 1 MB whose buffers were not kept made an agent grow by 5 MiB.
	keptCapacity = 2 << 20
	// freeOfCharge is up to which size a body needs no room: whoever fills it, a review of usual size gets through.
	freeOfCharge = 64 << 10
	// patience is how long a body waits for room: long for those who only came at the same moment, short for an API server.
	patience = 250 * time.Millisecond
)

var errNoRoom = errors.New("too many large bodies at once")

// bodies reads request bodies into buffers that are used again.
type bodies struct {
	limit int64 // of one body
	room  room  // for those that are not small
	small sync.Pool
	large sync.Pool // of those that take room, which bounds them
}

// body is one that was read, and must be given back when nothing refers to it any more.
type body struct {
	*bytes.Buffer

	taken int64
}

// read returns the whole body, or [http.MaxBytesError] when it has too many bytes, or errNoRoom.
func (b *bodies) read(w http.ResponseWriter, r *http.Request) (*body, error) {
	if r.ContentLength > b.limit {
		return nil, &http.MaxBytesError{Limit: b.limit}
	}

	// One of unknown size may become as large as any.
	size := r.ContentLength
	if size < 0 {
		size = b.limit
	}

	if size <= freeOfCharge {
		size = 0
	}

	if size > 0 && !b.room.take(r.Context(), size, patience) {
		return nil, errNoRoom
	}

	read := &body{take(b.pool(size)), size}
	if err := read.fill(w, r, b.limit); err != nil {
		b.giveBack(read)

		return nil, err
	}

	return read, nil
}

func (b *body) fill(w http.ResponseWriter, r *http.Request, limit int64) error {
	// The room behind the announced length lets ReadFrom see the end without growing.
	b.Grow(int(min(max(r.ContentLength, 0), believedLength)) + bytes.MinRead)

	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))

	return err
}

// pool returns where buffers for a body come from: a small one must not hold on to what a large one needs.
func (b *bodies) pool(taken int64) *sync.Pool {
	if taken > 0 {
		return &b.large
	}

	return &b.small
}

func take(pool *sync.Pool) *bytes.Buffer {
	if buffer, ok := pool.Get().(*bytes.Buffer); ok {
		return buffer
	}

	return &bytes.Buffer{}
}

func (b *bodies) giveBack(read *body) {
	if read.Cap() <= keptCapacity {
		read.Reset()
		b.pool(read.taken).Put(read.Buffer)
	}

	if read.taken > 0 {
		b.room.giveBack(read.taken)
	}
}

// prefix is ample for what an API server writes before the objects of a review.
const prefix = 1 << 10

// skim returns the uid of a review without keeping it, "" if its beginning is not that of one. It reads to the end, as who sends is
// not ready to listen before.
func skim(body io.Reader) (uid string) {
	var beginning [prefix]byte

	n, err := io.ReadFull(body, beginning[:])
	if err == nil {
		_, err = io.Copy(io.Discard, body)
	}

	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ""
	}

	return uidOf(beginning[:n])
}
