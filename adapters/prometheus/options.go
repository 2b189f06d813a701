package prometheus

import (
	"errors"
	"fmt"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// DefaultMaxManagers is how many managers have series of their own unless [Options] says otherwise.
const DefaultMaxManagers = 100

// ErrInvalidOptions means that metrics can not be built from what was given. The error that wraps it names everything that is wrong.
var ErrInvalidOptions = errors.New("invalid metrics options")

// Options are what may be chosen about metrics. The zero value is usable.
type Options struct {
	// Managers are those known from the configuration: there is always room for their series. An agent has them from the start, at zero, so
	// that an alert has something to compare with before the first event. Other managers get series when they are first seen.
	// Default: none.
	Managers []core.Manager
	// MaxManagers is how many managers have series of their own, Managers included; all others share the label value [Other].
	// Default: [DefaultMaxManagers].
	MaxManagers int
}

func (o Options) withDefaults() Options {
	if o.MaxManagers == 0 {
		o.MaxManagers = DefaultMaxManagers
	}

	return o
}

func (o Options) validate() error {
	var wrong []error

	if o.MaxManagers < 0 {
		wrong = append(wrong, fmt.Errorf("MaxManagers is %d, want at least 1", o.MaxManagers))
	}

	if o.MaxManagers > 0 && len(o.Managers) > o.MaxManagers {
		wrong = append(wrong, fmt.Errorf("%d Managers, want at most MaxManagers, which is %d", len(o.Managers), o.MaxManagers))
	}

	for i, manager := range o.Managers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			wrong = append(wrong, err)
		}

		if slices.Contains(o.Managers[:i], manager) {
			wrong = append(wrong, fmt.Errorf("manager %q is named twice in Managers", manager))
		}
	}

	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOptions, err)
	}

	return nil
}
