package runtimes

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

const (
	// drain is how long agents may send heartbeats after their removal.
	drain = time.Minute
	// lingering bounds the early reconciles for a removed manager that runtimes still send for.
	lingering = 10 * time.Minute
	// maxFormer bounds the former managers of a runtime, as the runtime names them.
	maxFormer = 100
)

// former are the managers that the agents of a runtime may not serve any more. The lock of its book
// guards it.
type former struct {
	tried []core.Manager             // from the last reconcile, which may have failed
	left  map[core.Manager]time.Time // since when no Watcher names them
}

// replaceTried replaces the managers of the reconcile before by current, the managers of this
// reconcile. It notes the managers that have left: of the reconcile before, and named, which the
// runtime has named. A name of the runtime affects that runtime alone.
func (f *former) replaceTried(current, named []core.Manager) {
	for _, manager := range slices.Concat(f.tried, named) {
		if slices.Contains(current, manager) || len(f.left) == maxFormer {
			continue
		}

		if f.left == nil {
			f.left = make(map[core.Manager]time.Time)
		}
		f.left[manager] = time.Now()
	}
	f.tried = current
}

// forgetLeft removes the managers from a fleet for which no agent sends heartbeats. It reports
// whether it has to be called again soon, because former agents still send some.
func (f *former) forgetLeft(from *fleet.Fleet, id core.RuntimeID, current []core.Manager) (soon bool) {
	for manager, left := range f.left {
		if from == nil || slices.Contains(current, manager) {
			delete(f.left, manager)
			continue
		}

		isForgotten := from.ForgetManager(id, manager)
		isRecent := time.Since(left) < lingering
		if !isForgotten && isRecent {
			soon = true
		}
		if isForgotten && !isRecent {
			delete(f.left, manager)
		}
	}
	return soon
}
