package controllerruntime

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// Several returns the handler for several controllers of one manager.
func Several(handlers ...core.Handler) core.Handler { return severalHandlers(handlers).asHandler() }

// EndPatience makes each failed watch of a list count as a long outage.
func EndPatience(list intake.Revocations) {
	if followed, ok := list.(*revocations); ok {
		followed.patience.Store(0)
	}
}

// Outage returns how long the API server has failed at each of the failures.
func Outage(failures ...time.Time) []time.Duration {
	var (
		series  outage
		lengths []time.Duration
	)
	for _, at := range failures {
		lengths = append(lengths, series.noteFailure(at))
	}

	return lengths
}
