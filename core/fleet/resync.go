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

// resync is a resync to come.
type resync struct {
	cause string
	due   time.Time
}

// schedule asks for a resync. Causes share a resync that is to come.
func (f *Fleet) schedule(k key, cause string, now time.Time) {
	if f.resyncs[k] == nil {
		f.resyncs[k] = &resync{cause, now.Add(time.Duration(f.opts.Random() * float64(f.opts.ResyncJitter)))}
	}
}
