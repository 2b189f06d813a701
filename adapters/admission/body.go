package admission

import (
	"bytes"
	"net/http"
	"sync"
)

const (
	// believedLength is up to where room is made for what Content-Length announces before it has arrived.
	believedLength = 1 << 20
	// keptCapacity is the largest buffer that is kept for the next request. Objects beyond half of it are rare, and
	// not worth the memory between them.
	keptCapacity = 512 << 10
)

// bodies reads request bodies into buffers that are used again. The zero value is ready to use.
type bodies struct{ pool sync.Pool }

// read returns the whole body, or [http.MaxBytesError] when it has more than limit bytes. The buffer must be given back when nothing
// refers to it any more.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, limit int64) (*bytes.Buffer, error) {
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}

	buffer := b.take()
	// The room behind the announced length lets ReadFrom see the end without growing.
	buffer.Grow(int(min(max(r.ContentLength, 0), believedLength)) + bytes.MinRead)

	if _, err := buffer.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		b.giveBack(buffer)

		return nil, err
	}

	return buffer, nil
}

func (b *bodies) take() *bytes.Buffer {
	if buffer, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buffer
	}

	return &bytes.Buffer{}
}

func (b *bodies) giveBack(buffer *bytes.Buffer) {
	if buffer.Cap() <= keptCapacity {
		buffer.Reset()
		b.pool.Put(buffer)
	}
}
