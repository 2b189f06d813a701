package fleet

import (
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// tally contains the counters of a manager. It outlives the records of its runtimes.
type tally struct {
	resyncs   map[hook.ResyncCause]int64
	untracked int64
	events    int64
}

// tallies contains a tally for each manager with requests. The fleet's lock guards it.
type tallies map[core.Manager]*tally

// ensureTally returns the tally of a manager, and makes it if necessary.
func (t tallies) ensureTally(manager core.Manager) *tally {
	if t[manager] == nil {
		t[manager] = &tally{resyncs: make(map[hook.ResyncCause]int64)}
	}
	return t[manager]
}
