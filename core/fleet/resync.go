package fleet

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// The causes of resyncs.
const (
	// CauseNewEpoch means that an agent process sent its first request: earlier events may be lost.
	CauseNewEpoch hook.ResyncCause = "new_epoch"
	// CauseGap means that a sequence number did not arrive.
	CauseGap hook.ResyncCause = "gap"
	// CauseWentBack means that the sequence is lower than before.
	CauseWentBack hook.ResyncCause = "went_back"
	// CauseReturned means that a silent runtime sends requests again.
	CauseReturned hook.ResyncCause = "returned"
	// CauseReplicaLost means that one of several replicas stopped sending without a last heartbeat.
	CauseReplicaLost hook.ResyncCause = "replica_lost"
)

// Causes returns all causes.
func Causes() []hook.ResyncCause {
	return []hook.ResyncCause{CauseNewEpoch, CauseGap, CauseWentBack, CauseReturned, CauseReplicaLost}
}

const (
	// longestCommit is longer than the longest timeout of a webhook, 30 s. After it, an API server
	// commits a write.
	longestCommit = 35 * time.Second
	// longestPause is longer than an agent waits after a refusal, 37.5 s by default. A lost replica
	// would have sent a request by then.
	longestPause = 40 * time.Second
)

// resync is a resync to come, of the fleet or of a record, or the zero value.
type resync struct {
	cause hook.ResyncCause
	due   time.Time
}

// postpone replaces a resync that is due earlier.
func (r *resync) postpone(cause hook.ResyncCause, due time.Time) {
	if due.After(r.due) {
		*r = resync{cause, due}
	}
}

// resendOfLoss returns the resend of the resync for a lost replica. It may have ended a moment ago,
// or may end before its next attempt.
func resendOfLoss(now time.Time) resync {
	return resync{CauseReplicaLost, now.Add(longestPause + longestCommit)}
}

// hasResync reports whether the handler took a resync of the whole runtime. A resync for one
// owner counts for that owner only.
func hasResync(batch *core.Batch, refused core.EventErrors) bool {
	for i := range batch.Events {
		e := &batch.Events[i]
		if e.Resync && e.Owner == (types.NamespacedName{}) && refused[i] == nil {
			return true
		}
	}
	return false
}
