package fleet

import (
	"log/slog"
	"maps"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Expect makes a runtime known for a manager before its first request. While Start has a handler
// for the manager that is ready, the runtime is unknown for two intervals of
// 30 s, and then stale. It stays known until Forget or ForgetManager. An agent without epoch makes
// it unknown. With an epoch it must send a heartbeat, because a stream may deliver the events of a
// dead agent. Call it at each start for all runtimes that have an agent.
func (f *Fleet) Expect(runtime core.RuntimeID, manager core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.forgotten, runtime)
	k := key{runtime, manager}
	if r := f.records[k]; r != nil {
		r.expect(time.Now())
		return
	}
	if _, known := f.expected[k]; !known {
		f.expected[k] = time.Now()
	}
}

// expect notes since when the runtime is expected.
func (r *record) expect(now time.Time) {
	if r.expected.IsZero() {
		r.expected = now
	}
}

// isMissing reports whether the runtime is expected, and silent for too long before its first
// heartbeat. A sender without epoch has no heartbeats.
func (r *record) isMissing(now time.Time) bool {
	return !r.expected.IsZero() && !r.heartbeats && (r.lastSeen.IsZero() || r.hasReplica()) &&
		now.Sub(latest(r.expected, r.lastSeen)) > patience(nil)
}

// addExpected makes records of the expected runtimes, where this process serves their manager. It
// logs each manager that is not served a minute later, as its name may be wrong.
func (f *Fleet) addExpected() {
	for _, manager := range f.adopt(f.readyManagers(), time.Now()) {
		f.warnUnserved(manager)
	}
}

func (f *Fleet) warnUnserved(manager core.Manager) {
	f.opts.Logger.Warn("no listener with this fleet runs for the manager: correct its name, set Options.Fleet, or call Start",
		slog.String("manager", string(manager)))
}

// adopt returns the managers to log.
func (f *Fleet) adopt(ready map[core.Manager]bool, now time.Time) (unserved []core.Manager) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, since := range f.expected {
		switch {
		case ready[k.manager]:
			f.record(k, now)
		case !f.settled[k.manager] && now.Sub(since) > patience(nil):
			f.settled[k.manager] = true
			unserved = append(unserved, k.manager)
		}
	}
	return unserved
}

// readyManagers asks the handlers without the lock.
func (f *Fleet) readyManagers() map[core.Manager]bool {
	ready := make(map[core.Manager]bool)
	for manager, handler := range f.handlers() {
		r, asks := handler.(core.Readier)
		ready[manager] = !asks || r.Ready() == nil
	}
	return ready
}

// handlers returns those of all calls of Start, if anything is expected.
func (f *Fleet) handlers() map[core.Manager]core.Handler {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.expected) == 0 {
		return nil
	}
	return maps.Clone(f.served)
}
