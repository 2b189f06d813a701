package fleet

import (
	"time"
)

// The causes of the resyncs of a fleet.
const (
	// CauseNewEpoch means that an agent process sent its first request: earlier events may be lost.
	CauseNewEpoch = "new_epoch"
	// CauseGap means that a number of the sequence did not arrive.
	CauseGap = "gap"
	// CauseWentBack means that the sequence is lower than it was.
	CauseWentBack = "went_back"
	// CauseReturned means that a silent runtime sends requests again.
	CauseReturned = "returned"
	// CauseReplicaLost means that one of several replicas stopped sending without a last heartbeat.
	CauseReplicaLost = "replica_lost"
)

// Causes returns all causes.
func Causes() []string {
	return []string{CauseNewEpoch, CauseGap, CauseWentBack, CauseReturned, CauseReplicaLost}
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
