package prometheus

import (
	"maps"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// otherManager is the value of the label "manager" for all managers without series of their own. It
// is no valid name of a manager.
const otherManager = "_other"

// managers bounds the values of the label "manager". It is safe for concurrent use.
type managers struct {
	max int

	mu    sync.Mutex
	known map[core.Manager]struct{} // with series of their own
}

func newManagers(opts Options) *managers {
	m := &managers{max: opts.MaxManagers, known: make(map[core.Manager]struct{})}
	for _, manager := range opts.Managers {
		m.known[manager] = struct{}{}
	}
	return m
}

// value returns the manager, or "_other" when its name is invalid or there is no room for it.
func (m *managers) value(manager core.Manager) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.known[manager]; ok {
		return string(manager)
	}
	if len(m.known) >= m.max || !validManager(manager) {
		return otherManager
	}
	m.known[manager] = struct{}{}
	return string(manager)
}

// all returns the managers with series of their own.
func (m *managers) all() []core.Manager {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.known))
}

func validManager(manager core.Manager) bool {
	_, err := core.ParseManager(string(manager))
	return err == nil
}
