package fleet

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Expect makes a runtime known for a manager before its first request. While Start has a ready
// handler for the manager, the runtime is unknown for two intervals of 30 s and then stale. It
// stays known until Forget or ForgetManager. An event from an agent without an epoch makes the
// runtime unknown again. An agent with an epoch must send a heartbeat, because a stream may deliver
// the events of a dead agent. Call Expect at each start for all runtimes that have an agent.
func (f *Fleet) Expect(runtime core.RuntimeID, manager core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()

	delete(f.forgotten, runtime)

	k := key{runtime, manager}
	if r := f.records[k]; r != nil {
		r.expectedSince = cmp.Or(r.expectedSince, time.Now())
		return
	}
	f.expected[k] = cmp.Or(f.expected[k], time.Now())
}

// warnUnserved names no manager if none is served.
func (f *Fleet) warnUnserved(manager core.Manager) {
	f.opts.Logger.Warn("no listener with this fleet runs for the manager: "+
		"correct its name, set Options.Fleet, or call Start",
		slog.String("manager", string(manager)))
}

// Forget removes a runtime and its pending resyncs. Call it when the runtime no longer exists. It
// does not call the observers of [Fleet.OnChange]. For a minute, or until Expect is called for the
// runtime, its requests are not observed, so that a request under way does not add the runtime
// again.
func (f *Fleet) Forget(runtime core.RuntimeID) {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := time.Now()
	maps.DeleteFunc(f.forgotten, func(_ core.RuntimeID, at time.Time) bool { return now.Sub(at) >= straggler })
	f.forgotten[runtime] = now

	for _, manager := range slices.Clone(f.managers[runtime]) { // removeRecord changes it.
		f.removeRecord(key{runtime, manager})
	}

	maps.DeleteFunc(f.expected, func(k key, _ time.Time) bool { return k.runtime == runtime })
}

// ForgetManager removes a runtime for one manager, unless the runtime still sends requests to the
// manager. It reports whether the runtime is removed now. Call it when the runtime no longer has a
// watch for the manager, and again while it returns false. Otherwise the runtime is stale for that
// manager until [Options].ForgetAfter.
func (f *Fleet) ForgetManager(runtime core.RuntimeID, manager core.Manager) (forgotten bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	k := key{runtime, manager}
	if r := f.records[k]; r != nil {
		if r.isSpeaking(time.Now()) {
			return false
		}
		f.removeRecord(k)
	}

	delete(f.expected, k)
	return true
}
