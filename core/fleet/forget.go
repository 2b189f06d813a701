package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Forget removes a runtime with its resyncs to come. Call it when the runtime is gone. It does not
// call the observers of [Fleet.OnChange]. For a minute, or until Expect is called for the runtime,
// its requests are not observed: one that is under way does not bring it back.
func (f *Fleet) Forget(runtime core.RuntimeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(f.forgotten, func(_ core.RuntimeID, at time.Time) bool { return now.Sub(at) >= straggler })
	if len(f.managers[runtime]) > 0 {
		f.forgotten[runtime] = now
	}
	for _, manager := range f.managers[runtime] {
		delete(f.records, key{runtime, manager})
		delete(f.resyncs, key{runtime, manager})
	}
	delete(f.managers, runtime)
	maps.DeleteFunc(f.expected, func(k key, _ time.Time) bool { return k.runtime == runtime })
}

// ForgetManager removes a runtime for one manager, unless it still sends requests to it, and
// reports whether it is removed now. Call it when the runtime has no watch for the manager any
// more, and again while it returns false. Otherwise the runtime is stale for that manager until
// [Options].ForgetAfter.
func (f *Fleet) ForgetManager(runtime core.RuntimeID, manager core.Manager) (forgotten bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := key{runtime, manager}
	r := f.records[k]
	if r != nil && r.isSpeaking(time.Now()) {
		return false
	}
	if r != nil {
		f.remove(k)
	}
	delete(f.expected, k)
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
