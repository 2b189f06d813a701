package informer

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/dns1123"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Options are the optional settings of a [Source]. The zero value is the documented default.
type Options struct {
	// Namespace is the only namespace to watch, so that a Role is enough. Default: all namespaces,
	// and objects without a namespace.
	Namespace string
	// ExcludedNamespaces are not watched. The API server leaves them out. Default: none.
	ExcludedNamespaces []string
	// Filter decides which changes matter. It gets digests: both states of a [core.Change] have
	// labels, finalizers, generation, deletion timestamp and the owner annotation. A watched field
	// is replaced by a text that differs whenever the field differs. Labels and finalizers of more
	// than 4 KiB are replaced in the same way. It must not panic. Default: [core.Changed].
	Filter core.Filter
	// OwnerAnnotation is the annotation that names the owner of an object. Default:
	// [core.OwnerAnnotation].
	OwnerAnnotation string
	// RequireOwner sends no event for an object without a valid owner annotation, because contract
	// v1 cannot carry such an event. After the first list, there is then one resync for each owner
	// in the list. Default: false, so the event has no owner.
	RequireOwner bool
	// Now is the clock of events. Default: [time.Now].
	Now func() time.Time
	// Logger gets a line when a watch fails, every 5 min while it fails, and when it is established
	// again. Events are logged at debug. The names of objects are logged, but never their content.
	// Default: discarded.
	Logger *slog.Logger
	// Hooks are callbacks for metrics and health. Default: none.
	Hooks Hooks
}

// Hooks are optional callbacks of a [Source]. They are called concurrently and must return
// immediately.
type Hooks struct {
	// Observed is called for each change of an object.
	Observed func(hook.Observation)
	// Proved is called when the API server shows that a watch works: it is established, or an
	// object or a bookmark arrived. A healthy watch receives a bookmark about every minute.
	Proved func(hook.Proof)
	// Failed is called for each failed attempt to establish a watch.
	Failed func(hook.WatchFailure)
}

// validate refuses names that would change the path or the selector of a request.
func (o Options) validate() error {
	problems := []error{core.ValidateOwnerAnnotation(o.OwnerAnnotation)}
	for _, name := range append(slices.Clone(o.ExcludedNamespaces), o.Namespace) {
		if name != "" && !dns1123.IsLabel(name) {
			problems = append(problems, fmt.Errorf("namespace %.80q: want a DNS-1123 label", name))
		}
	}
	return errors.Join(problems...)
}

func (o Options) withDefaults() Options {
	o.ExcludedNamespaces = slices.Compact(slices.Sorted(slices.Values(o.ExcludedNamespaces)))
	return option.WithDefaults(o, Options{
		OwnerAnnotation: core.OwnerAnnotation,
		Filter:          core.Changed,
		Now:             time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			Observed: func(hook.Observation) {},
			Proved:   func(hook.Proof) {},
			Failed:   func(hook.WatchFailure) {},
		},
	})
}
