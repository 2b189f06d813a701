package listener

import (
	"bytes"
	"sync"
)

// maxKept is the size of the largest buffer that is kept for another request: that of the largest
// body, after it grew. The garbage collector frees buffers that no request takes.
const maxKept = 512 << 10

// pool keeps buffers, which grow with the bytes that arrive, and not with the announced length.
type pool struct{ buffers sync.Pool }

func newPool() *pool {
	return &pool{buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
}

func (p *pool) get() *bytes.Buffer {
	buffer, _ := p.buffers.Get().(*bytes.Buffer) // The pool has nothing else.
	return buffer
}

func (p *pool) put(buffer *bytes.Buffer) {
	if buffer.Cap() > maxKept {
		return
	}
	buffer.Reset()
	p.buffers.Put(buffer)
}
