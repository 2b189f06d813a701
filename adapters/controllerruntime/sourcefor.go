package controllerruntime

import (
	"cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// SourceFor returns the source of a controller for the events of a manager. Call it once for each
// controller, before the controller manager starts, and pass the source only to WatchesRawSource of
// that controller.
//
// The argument name is the manager of the watches in the runtimes. Two controllers may use the same
// name: each gets every event, and an event is acknowledged when both have enqueued it. A
// controller may have several sources, each with a different name.
//
// The source follows the Fleet of the listener. It uses the Logger of the listener and Elected of
// the controller manager, unless opts sets them. If no controller starts the source within 30 s
// after this replica starts to lead, a line with the name is logged. SourceFor fails if an argument
// is missing, if name is not a DNS-1123 label, or if the listener has started already.
func SourceFor[request comparable](
	events *Listener, name core.Manager, mapFunc MapFunc[request], opts SourceOptions,
) (*Source[request], error) {
	if events != nil {
		opts.Logger = cmp.Or(opts.Logger, events.config.Logger)
	}
	source := NewSource(mapFunc, opts)
	if err := events.Handle(name, source); err != nil {
		return nil, err
	}
	return source, nil
}
