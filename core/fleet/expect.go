package fleet

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
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
		r.expected = cmp.Or(r.expected, time.Now())
		return
	}
	f.expected[k] = cmp.Or(f.expected[k], time.Now())
}

// isMissing reports whether the runtime is expected, and silent for too long before its first
// heartbeat. A sender without epoch has no heartbeats.
func (r *record) isMissing(now time.Time) bool {
	return !r.expected.IsZero() && !r.heartbeats && (r.lastSeen.IsZero() || r.hasReplica()) &&
		now.Sub(latest(r.expected, r.lastSeen)) > patience(nil)
}

func (f *Fleet) warnUnserved(manager core.Manager) {
	f.opts.Logger.Warn("no listener with this fleet runs for the manager: correct its name, set Options.Fleet, or call Start",
		slog.String("manager", string(manager)))
}

// adopt returns each manager that is not served a minute later, as its name may be wrong.
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

// readyManagers asks each handler. Ready may block, so it is called without the lock.
func (f *Fleet) readyManagers() map[core.Manager]bool {
	f.mu.Lock()
	handlers := maps.Clone(f.served)
	f.mu.Unlock()
	ready := make(map[core.Manager]bool)
	for manager, handler := range handlers {
		ready[manager] = isReady(handler)
	}
	return ready
}

func isReady(handler core.Handler) bool {
	r, asks := handler.(core.Readier)
	return !asks || r.Ready() == nil
}

// noteLeading keeps the time since which a handler is ready.
func (f *Fleet) noteLeading(ready map[core.Manager]bool) {
	leads := slices.Contains(slices.Collect(maps.Values(ready)), true)

	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !leads:
		f.leads = time.Time{}
	case f.leads.IsZero():
		f.leads = time.Now()
	}
}

// Forget removes a runtime with its resyncs to come. Call it when the runtime is gone. It does not
// call the observers of [Fleet.OnChange]. For a minute, or until Expect is called for the runtime,
// its requests are not observed: one that is under way does not bring it back.
func (f *Fleet) Forget(runtime core.RuntimeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(f.forgotten, func(_ core.RuntimeID, at time.Time) bool { return now.Sub(at) >= straggler })
	f.forgotten[runtime] = now
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
	if r := f.records[k]; r != nil {
		if r.isSpeaking(time.Now()) {
			return false
		}
		f.remove(k)
	}
	delete(f.expected, k)
	return true
}

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

type refusal struct {
	reason core.Reason
	at     time.Time
}

// refusal returns "" if the last one is so old that the runtime would have tried again.
func (r *record) refusal(now time.Time) core.Reason {
	if now.Sub(r.refused.at) > longestPause+patience(nil) {
		return ""
	}
	return r.refused.reason
}
