package fleet

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Forget removes what is known of a runtime, and the resyncs that were to come. An operator calls it when the runtime is gone.
func (f *Fleet) Forget(runtime core.RuntimeID) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, manager := range f.managers[runtime] {
		delete(f.records, key{runtime, manager})
		delete(f.resyncs, key{runtime, manager})
	}

	delete(f.managers, runtime)
}

// ForgetManager forgets that a runtime was heard for a manager, unless it still is, and reports whether nothing is known of that now. An
// operator calls it, again while it is heard, when the agents of the runtime were told of other managers: else the runtime would look stale for
// the former one until [Options.ForgetAfter]. Who is heard is not forgotten, as his next heartbeat would bring him back, at the price of a resync.
func (f *Fleet) ForgetManager(runtime core.RuntimeID, manager core.Manager) (forgotten bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	k := key{runtime, manager}

	r := f.records[k]
	if r != nil && r.speaks(&f.opts, time.Now()) {
		return false
	}

	if r != nil {
		f.remove(k)
	}

	return true
}

// remove forgets one record.
func (f *Fleet) remove(k key) {
	delete(f.records, k)
	delete(f.resyncs, k)

	managers := slices.DeleteFunc(f.managers[k.runtime], func(m core.Manager) bool { return m == k.manager })
	if len(managers) == 0 {
		delete(f.managers, k.runtime)

		return
	}

	f.managers[k.runtime] = managers
}
