package installation

import "github.com/runtime-watcher/runtime-watcher/core"

// memory contains the facts about runtimes that an installer keeps between two calls. A restart of
// the process loses them. Each runtime is then read and corrected once.
type memory struct {
	records  records            // of complete installations
	restarts restarts           // of agents, after corrections
	contests perRuntime[string] // texts of the exclusions that were removed once
}

// forgetRuntime removes all facts about a runtime.
func (m *memory) forgetRuntime(id core.RuntimeID) {
	m.records.delete(id)
	m.restarts.delete(id)
	m.contests.delete(id)
}
