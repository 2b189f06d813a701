package fleet

import (
	"context"
	"log/slog"
	"slices"
)

// OnChange calls observe for every later change of freshness, one call at a time and in order.
// observe must return immediately, because the request of a runtime may wait for it. It may query
// the fleet. While Start runs, observe is called within a second after a runtime becomes stale.
// Forget does not call observe. OnChange panics if observe is nil.
func (f *Fleet) OnChange(observe func(Transition)) {
	if observe == nil {
		panic("fleet: observe is nil")
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	f.observers = append(slices.Clone(f.observers), observe)
}

// notifyObservers calls the observers. It leaves changes that come meanwhile to the call that runs,
// to keep their order.
func (f *Fleet) notifyObservers() {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.notifying {
		return
	}

	f.notifying = true
	defer func() { f.notifying = false }()
	for len(f.changes) > 0 {
		changes := f.changes
		f.changes = nil
		f.notifyUnlocked(f.observers, changes)
	}
}

// notifyUnlocked releases the lock while the observers are called, also when one of them panics.
func (f *Fleet) notifyUnlocked(observers []func(Transition), changes []Transition) {
	f.mu.Unlock()
	defer f.mu.Lock()

	for i := range changes {
		f.logChange(&changes[i])
		for _, observe := range observers {
			observe(changes[i])
		}
	}
}

func (f *Fleet) logChange(change *Transition) {
	level := slog.LevelInfo
	if change.To.State == Stale || change.To.State == Degraded { // They need an action.
		level = slog.LevelWarn
	}
	f.lines.Log(context.Background(), level, "freshness of a runtime changed",
		slog.String("runtime", string(change.To.Runtime)), slog.String("manager", string(change.To.Manager)),
		slog.String("from", string(change.From)), slog.String("to", string(change.To.State)),
		slog.String("reason", string(change.To.Reason)))
}
