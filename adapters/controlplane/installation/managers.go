package installation

import (
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// Managers returns the managers that the agents of a runtime send to, sorted: those of the watches,
// and those of MANAGERS in [Options.Settings].
func (i *Installer) Managers(watches []admission.Watch) []core.Manager {
	managers := make([]core.Manager, 0, len(watches))
	for name := range strings.SplitSeq(i.opts.Settings[settingManagers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			managers = append(managers, core.Manager(name))
		}
	}
	for _, watch := range watches {
		managers = append(managers, watch.Manager)
	}
	slices.Sort(managers)
	return slices.Compact(managers)
}

// managersSetting is the value of MANAGERS.
func (i *Installer) managersSetting(watches []admission.Watch) string {
	var names []string
	for _, manager := range i.Managers(watches) {
		names = append(names, string(manager))
	}
	return strings.Join(names, ",")
}
