package admission

import (
	"bytes"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	// believedLength is up to where room is made for what Content-Length announces before it has arrived: whoever announces more has
	// to send it, too. Buffers that are used again have more room.
	believedLength = 64 << 10
	// keptCapacity is the largest buffer that is kept for the next request. Objects beyond half of it are rare, and
	// not worth the memory between them.
	keptCapacity = 512 << 10
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
	pool  sync.Pool
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

	read := &body{b.take(), size}
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

func (b *bodies) take() *bytes.Buffer {
	if buffer, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buffer
	}

	return &bytes.Buffer{}
}

func (b *bodies) giveBack(read *body) {
	if read.Cap() <= keptCapacity {
		read.Reset()
		b.pool.Put(read.Buffer)
	}

	if read.taken > 0 {
		b.room.giveBack(read.taken)
	}
}
