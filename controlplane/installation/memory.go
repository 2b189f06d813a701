package installation

import "github.com/runtime-watcher/runtime-watcher/core"

// memory is what an installer remembers of its runtimes between two calls. It is lost at a restart
// of the process, after which each runtime is read and corrected once.
type memory struct {
	records  records            // of complete installations
	restarts restarts           // of agents, after corrections
	contests perRuntime[string] // texts of the exclusions that were removed once
}

// forget removes all that is remembered of a runtime.
func (m *memory) forget(id core.RuntimeID) {
	m.records.delete(id)
	m.restarts.delete(id)
	m.contests.delete(id)
}
