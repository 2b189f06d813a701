package controllerruntime

import (
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// notStarted is the time after which a source without a controller is reported, and again.
const notStarted = 30 * time.Second

// attachable is a source of any request type, also one within another handler.
type attachable interface {
	// attachTo makes it a source of a listener, for one manager.
	attachTo(at *attachment) error
	// hasStarted reports whether a controller has started it.
	hasStarted() bool
	// leaderChannel is closed when this replica leads, and nil if that is not known.
	leaderChannel() <-chan struct{}
}

// warnUntilStarted reports a source that no controller has started, 30 s after this replica leads,
// and each 30 s until one does. If it is not known whether this replica leads, it reports once.
func warnUntilStarted(ctx context.Context, s attachable, logger *slog.Logger) {
	elected := s.leaderChannel()
	if elected != nil {
		select {
		case <-elected:
		case <-ctx.Done():
			return
		}
	}

	for {
		periodic.Pause(ctx, notStarted)
		if ctx.Err() != nil || s.hasStarted() {
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

// attachment is the place of a source in a listener.
type attachment struct {
	// listener is the name of the listener, for the log.
	listener string
	manager  core.Manager
	// elected is closed when this replica leads, nil if the listener does not know.
	elected <-chan struct{}
	// fleet is nil without one.
	fleet *fleet.Fleet
	// isServed reports whether the listener has started.
	isServed func() bool
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
