package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/managersfile"
)

const managersPoll = 10 * time.Second

// managerList contains the known managers: the managers of the options, and the managers of a file
// that may change. A manager stays known when the file no longer lists it, because the outbox still
// sends heartbeats to it. A 404 of the webhook would then hide changes behind the state "fresh".
type managerList struct {
	fixed []core.Manager
	open  bool   // the webhook takes reviews for all others, too
	path  string // empty: no file
	now   func() time.Time
	log   *slog.Logger

	added atomic.Pointer[[]core.Manager] // all that the file has listed, without those that are fixed

	listed []core.Manager // of the last good reading
	fault  atomic.Pointer[string]
	// broken is called after each reading, for a metric.
	broken func(broken bool)
}

func (m *managerList) fileProblem() string {
	if fault := m.fault.Load(); fault != nil {
		return *fault
	}
	return ""
}

// noteFault remembers the fault of a reading, "" for none. It reports whether the fault is new.
func (m *managerList) noteFault(fault string) (changed bool) {
	changed = m.fileProblem() != fault
	m.fault.Store(&fault)
	m.broken(fault != "")
	return changed
}

func (m *managerList) allManagers() []core.Manager { return slices.Concat(m.fixed, *m.added.Load()) }

func (m *managerList) serves(manager core.Manager) bool {
	return m.open || slices.Contains(m.fixed, manager) || slices.Contains(*m.added.Load(), manager)
}

func (m *managerList) asComponent(acceptor core.Acceptor, version contract.Version) component {
	return component{"managers", func(ctx context.Context) error {
		if m.path == "" {
			<-ctx.Done()
			return nil
		}

		periodic.Call(ctx, managersPoll, func() { m.reloadFile(acceptor, version) })
		return nil
	}}
}

// reloadFile reads the file. The last good list stays in use when the new one is broken.
func (m *managerList) reloadFile(acceptor core.Acceptor, version contract.Version) {
	managers, err := managersfile.Others(m.fixed, m.path)
	if err != nil {
		if m.noteFault(err.Error()) {
			m.log.Warn("the file with managers is broken: the last good list stays in use", slog.Any("error", err))
		}
		return
	}

	added := without(managers, m.allManagers())
	// Managers that the file no longer lists keep their places of the outbox.
	free := min(len(added), max(defaults.MaxManagers-len(m.allManagers()), 0))
	m.noteRest(added[free:])
	if removed := without(m.listed, managers); len(removed) > 0 {
		m.log.Warn("the file no longer lists some managers: the agent keeps reporting to them until it restarts",
			slog.Any("managers", removed))
	}

	m.addManagers(added[:free], acceptor, version)
	m.listed = managers
}

// noteRest makes managers without a place the problem of the file.
func (m *managerList) noteRest(rest []core.Manager) {
	problem := ""
	if len(rest) > 0 {
		problem = fmt.Sprintf(
			"%s: no room for %v: at most %d managers are allowed, including managers that it no longer lists",
			m.path, rest, defaults.MaxManagers)
	}

	changed := m.noteFault(problem)
	switch {
	case !changed:
	case problem == "":
		m.log.Info("the file with managers is valid again", slog.String("path", m.path))
	default:
		m.log.Error("the limit on managers is reached, so changes for further managers are missed: restart the agent",
			slog.Any("managers", rest), slog.Int("most", defaults.MaxManagers))
	}
}

func (m *managerList) addManagers(managers []core.Manager, acceptor core.Acceptor, version contract.Version) {
	if len(managers) == 0 {
		return
	}

	added := slices.Concat(*m.added.Load(), managers)
	m.added.Store(&added)
	m.log.Info("managers changed", slog.Any("managers", m.allManagers()))

	// A resync of contract v1 needs an owner, and no event has named one yet.
	if version.NeedsOwner() {
		return
	}

	for _, manager := range managers {
		acceptor.Accept(manager, core.WatchEvent{Resync: true, Time: m.now()})
	}
}

func without(managers, others []core.Manager) []core.Manager {
	return slices.DeleteFunc(slices.Clone(managers), func(manager core.Manager) bool {
		return slices.Contains(others, manager)
	})
}
