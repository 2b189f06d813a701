package prometheus

import (
	"errors"
	"fmt"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const defaultMaxManagers = 100

// errOptions means that an argument is wrong. The error that wraps it names each wrong one.
var errOptions = errors.New("invalid metrics options")

// Options are the optional settings of metrics. The zero value is the documented default.
type Options struct {
	// Managers always have series of their own. Those of an agent exist from the start, at zero, so
	// that alerts can compare. Other managers get series with their first event. Default: none.
	Managers []core.Manager
	// MaxManagers bounds the managers with series of their own, Managers included. All others share
	// the label value "_other". Default: 100.
	MaxManagers int
	// Aliases adds the six metrics watcher_listener_* of kyma-project/runtime-watcher to those of a
	// listener. docs/platforms/migration.md has the differences. Default: false.
	Aliases bool
	// PerRuntime bounds the series of single runtimes. [RegisterFleet] has three for each pair of
	// runtime and manager: pairs that are not fresh come first, and a scrape sorts all that are
	// known. [RegisterInstallations] has one for each runtime with a problem, and bounds each
	// problem alone. Default: 0, none.
	PerRuntime int
}

func (o Options) validate() error {
	var wrong []error
	if o.MaxManagers < 0 {
		wrong = append(wrong, fmt.Errorf("MaxManagers is %d, want at least 1", o.MaxManagers))
	} else if len(o.Managers) > o.MaxManagers {
		wrong = append(wrong, fmt.Errorf("%d Managers, want at most MaxManagers, %d", len(o.Managers), o.MaxManagers))
	}
	if o.PerRuntime < 0 {
		wrong = append(wrong, fmt.Errorf("PerRuntime is %d, want at least 0", o.PerRuntime))
	}
	for i, manager := range o.Managers {
		_, err := core.ParseManager(string(manager))
		wrong = append(wrong, err)
		if slices.Contains(o.Managers[:i], manager) {
			wrong = append(wrong, fmt.Errorf("manager %q is named twice in Managers", manager))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("%w: %w", errOptions, err)
	}
	return nil
}
