package lab

import (
	"testing"
	"time"
)

// The oracle must be able to fail.
func TestAFlowLosesWhatNeverArrives(t *testing.T) {
	t.Parallel()
	var arrivals Arrivals
	of := Arrival{Runtime: "runtime-1", Manager: "manager"}
	now := time.Now()
	f := &Flow{arrivals: &arrivals, of: of, commits: []time.Time{now.Add(-time.Hour), now.Add(-time.Hour), now.Add(time.Hour)}}
	wants := func(what string, strict, lost, resyncs int) {
		t.Helper()
		if l, r := f.lost(strict); l != lost || r != resyncs {
			t.Errorf("%s: %d lost, %d by a resync, want %d and %d", what, l, r, lost, resyncs)
		}
	}
	wants("nothing arrives", 3, 3, 0)
	arrivals.Note(Arrival{"runtime-2", "manager", flowObject(0)}, false)
	wants("of another runtime", 3, 3, 0)
	arrivals.Note(Arrival{"runtime-1", "manager", flowObject(0)}, false)
	wants("one arrives", 3, 2, 0)
	arrivals.Note(of, true)
	wants("a resync is no proof of later writes", 3, 1, 1)
	wants("a resync does not count", 0, 2, 0)
}
