package outbox

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// settle returns how long an event waits before it is sent.
//
// A change source may see a write before its commit, and a reconcile that reads too early learns
// nothing. A receiver that checks the reads of its reconciles finds that out itself. It needs the
// UID for that.
func (l *lane) settle(event *core.WatchEvent) time.Duration {
	usual := max(l.opts.Settle, 0)
	if !l.checked || event.Resync || event.UID == "" {
		return usual
	}
	return min(usual, max(l.opts.SettleChecked, 0))
}
