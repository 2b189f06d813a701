package fleet

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// refusal is the last request that the verifier refused.
type refusal struct {
	reason string
	at     time.Time
}

// Refuse notes that the verifier refused the whole request of an identified runtime, and why. The
// reason is from a small fixed set. A runtime without a verified request is not noted, unless
// [Fleet.Expect] was called for it.
func (f *Fleet) Refuse(runtime core.RuntimeID, manager core.Manager, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.records[key{runtime, manager}]; r != nil {
		r.refused = refusal{boundText(reason), time.Now()}
	}
}

// refusal returns the reason of the last refusal, "" if it is so old that the runtime would have
// tried again.
func (r *record) refusal(now time.Time) string {
	if now.Sub(r.refused.at) > longestPause+patience(nil) {
		return ""
	}
	return r.refused.reason
}
