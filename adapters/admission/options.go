package admission

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// DefaultMaxBody is the largest body of a review in bytes unless [Options] say otherwise. An API server refuses
// requests beyond 3 MiB, and a review can carry such an object twice.
const DefaultMaxBody = 8 << 20

// DefaultMaxBodies is the size of all bodies together unless [Options] say otherwise: 32 reviews of objects of 1 MB at the same moment.
const DefaultMaxBodies = 64 << 20

// Options are what is optional of a [Handler]. The zero value is ready to use. Maps and slices are copied.
type Options struct {
	// Filter decides which changes matter. It must not keep the change after it returned: the bytes behind it are
	// reused. A change on which it panics is taken as one that matters. Default: [core.Changed].
	//
	// Dry-run writes never reach it: nothing of them will be there to look at.
	Filter core.Filter
	// Filters decide instead of Filter for the managers that they name.
	Filters map[core.Manager]core.Filter
	// Managers are those whose reviews are taken; others are answered 404. It also bounds the values of manager that
	// hooks see. Default: every valid name.
	Managers []core.Manager
	// Serves reports whether reviews of a manager are taken, in place of Managers, for a list that
	// changes. It is called for each review, concurrently, and must return at once. Default: none.
	Serves func(core.Manager) bool
	// RequireOwner sends no event for an object without a valid [OwnerAnnotation], as contract v1 could not carry it.
	// Default: such an event leaves without owner.
	RequireOwner bool
	// MaxBody is the size in bytes beyond which a body is refused. Default: [DefaultMaxBody].
	MaxBody int64
	// MaxBodies bounds the bytes of all bodies that are in memory at once. An origin (an IP address, or a
	// network of 64 bits of IPv6) gets four fifths of the bytes that others leave. A body that finds no
	// room within 250 ms is not read: the write is allowed, and a resync of the manager stands in. It is at
	// least five quarters of MaxBody. Default: [DefaultMaxBodies].
	MaxBodies int64
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Logger gets a debug line per review, at most one warning a minute of each kind, and every panic as an error. Objects are
	// never logged, only their names. Default: no logs.
	Logger *slog.Logger
	// Hooks are told what happens, for metrics. Default: none.
	Hooks Hooks
}

func (o Options) withDefaults() Options {
	o.Filters = maps.Clone(o.Filters)
	o.Managers = slices.Clone(o.Managers)
	o.Hooks = o.Hooks.withDefaults()

	if o.Filter == nil {
		o.Filter = core.Changed
	}

	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}

	if o.MaxBodies == 0 {
		o.MaxBodies = DefaultMaxBodies
	}

	if o.Serves == nil {
		o.Serves = func(manager core.Manager) bool {
			return len(o.Managers) == 0 || slices.Contains(o.Managers, manager)
		}
	}

	if o.Now == nil {
		o.Now = time.Now
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func (o Options) validate() error {
	var problems []error

	if o.MaxBody < 0 {
		problems = append(problems, fmt.Errorf("MaxBody: want a number of bytes above 0, have %d", o.MaxBody))
	}

	if o.MaxBodies < 0 {
		problems = append(problems, fmt.Errorf("MaxBodies: want a number of bytes above 0, have %d", o.MaxBodies))
	}

	for _, manager := range o.Managers {
		if _, err := core.ParseManager(string(manager)); err != nil {
			problems = append(problems, fmt.Errorf("Managers: %w", err))
		}
	}

	for _, manager := range slices.Sorted(maps.Keys(o.Filters)) {
		if _, err := core.ParseManager(string(manager)); err != nil {
			problems = append(problems, fmt.Errorf("Filters: %w", err))
		}

		if o.Filters[manager] == nil {
			problems = append(problems, fmt.Errorf("Filters: want a filter for manager %.63q, have nil", manager))
		}
	}

	return errors.Join(problems...)
}
