package controllerruntime

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// notStarted is the time after which a source without a controller is reported, and again.
const notStarted = 30 * time.Second

// SourceFor makes the source of a controller for the events of a manager. Call it once for each
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

// attachable is a source of any request type, also one within another handler.
type attachable interface {
	// attach makes it a source of a listener, for one manager.
	attach(to *Listener, name core.Manager) error
	// hasStarted reports whether a controller has started it.
	hasStarted() bool
	// leads is closed when this replica leads, and nil if that is not known.
	leads() <-chan struct{}
}

// warnUntilStarted reports a source that no controller has started, 30 s after this replica leads,
// and each 30 s until one does. If it is not known whether this replica leads, it reports once.
func warnUntilStarted(ctx context.Context, s attachable, logger *slog.Logger) {
	elected := s.leads()
	if elected != nil {
		select {
		case <-elected:
		case <-ctx.Done():
			return
		}
	}

	ticker := time.NewTicker(notStarted)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}

		if s.hasStarted() {
			return
		}
		if elected == nil {
			logger.WarnContext(ctx, "no controller has started this source, so each event is answered with 503: "+
				"pass the source to WatchesRawSource. A replica that does not lead logs this line too, unless "+
				"Elected is set")
			return
		}
		logger.WarnContext(ctx, "no controller has started this source, so each event is answered with 503: "+
			"pass the source to WatchesRawSource")
	}
}
