package fleet

import (
	"time"
)

// The causes of the resyncs of a fleet.
const (
	// causeNewEpoch means that an agent process sent its first request: earlier events may be lost.
	causeNewEpoch = "new_epoch"
	// causeGap means that a number of the sequence did not arrive.
	causeGap = "gap"
	// causeWentBack means that the sequence is lower than it was.
	causeWentBack = "went_back"
	// causeReturned means that a silent runtime sends requests again.
	causeReturned = "returned"
	// causeReplicaLost means that one of several replicas stopped sending without a last heartbeat.
	causeReplicaLost = "replica_lost"
)

// Causes returns all causes.
func Causes() []string {
	return []string{causeNewEpoch, causeGap, causeWentBack, causeReturned, causeReplicaLost}
}

const (
	// longestCommit is longer than the longest timeout of a webhook, 30 s. After it, an API server
	// commits a write.
	longestCommit = 35 * time.Second
	// longestPause is longer than an agent waits after a refusal, 37.5 s by default. A lost replica
	// would have sent a request by then.
	longestPause = 40 * time.Second
)

// resync is a resync to come.
type resync struct {
	cause string
	due   time.Time
}

// resendOfEpoch returns the resend of the resync for a new epoch. The former life of the agent may
// have reviewed a write that is not committed yet.
func resendOfEpoch(now time.Time) resync { return resync{causeNewEpoch, now.Add(longestCommit)} }

// resendOfLoss returns the same for a lost replica. It may have ended a moment ago, or may end
// before its next attempt.
func resendOfLoss(now time.Time) resync {
	return resync{causeReplicaLost, now.Add(longestPause + longestCommit)}
}

// schedule asks for a resync. Causes share a resync that is to come.
func (f *Fleet) schedule(k key, cause string, now time.Time) {
	if f.resyncs[k] == nil {
		f.resyncs[k] = &resync{cause, now.Add(time.Duration(f.opts.Random() * float64(f.opts.ResyncJitter)))}
	}
}
