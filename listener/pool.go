package listener

import "sync"

// pool keeps buffers of one size.
type pool struct{ buffers sync.Pool }

func newPool(size int) *pool {
	return &pool{buffers: sync.Pool{New: func() any {
		buffer := make([]byte, size)

		return &buffer
	}}}
}

func (p *pool) get() *[]byte {
	buffer, _ := p.buffers.Get().(*[]byte) // Nothing else is ever put in.

	return buffer
}

func (p *pool) put(buffer *[]byte) { p.buffers.Put(buffer) }
