package installation

import (
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// perRuntime contains a value for each of some runtimes. Its methods may be called concurrently.
type perRuntime[T any] struct {
	values sync.Map
}

// load returns the zero value for a runtime without a value.
func (p *perRuntime[T]) load(id core.RuntimeID) (value T, known bool) {
	stored, _ := p.values.Load(id)
	value, known = stored.(T)
	return value, known
}

func (p *perRuntime[T]) store(id core.RuntimeID, value T) { p.values.Store(id, value) }

func (p *perRuntime[T]) delete(id core.RuntimeID) { p.values.Delete(id) }
