package listener

import (
	"bytes"
	"sync"
)

// maxKept is the largest buffer that is kept for the next request: large batches are rare.
const maxKept = 64 << 10

// pool keeps buffers, which grow with what arrives and not with what is announced.
type pool struct{ buffers sync.Pool }

func newPool() *pool {
	return &pool{buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
}

func (p *pool) get() *bytes.Buffer {
	buffer, _ := p.buffers.Get().(*bytes.Buffer) // Nothing else is ever put in.

	return buffer
}

func (p *pool) put(buffer *bytes.Buffer) {
	if buffer.Cap() > maxKept {
		return
	}

	buffer.Reset()
	p.buffers.Put(buffer)
}
