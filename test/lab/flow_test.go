package lab

import (
	"slices"
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
	wants := func(what string, from, to, resyncs int, lost ...int) {
		t.Helper()
		if l, r := f.lost([]Window{{From: from, To: to}}); !slices.Equal(l, lost) || r != resyncs {
			t.Errorf("%s: %v lost, %d by a resync, want %v and %d", what, l, r, lost, resyncs)
		}
	}
	wants("nothing arrives", 0, 3, 0, 0, 1, 2)
	arrivals.Note(Arrival{"runtime-2", "manager", flowObject(0)}, false)
	wants("of another runtime", 0, 3, 0, 0, 1, 2)
	arrivals.Note(Arrival{"runtime-1", "manager", flowObject(0)}, false)
	wants("one arrives", 0, 3, 0, 1, 2)
	arrivals.Note(of, true)
	wants("a resync is no proof of later writes", 0, 3, 1, 2)
	wants("a resync counts in the window alone", 2, 3, 0, 1, 2)
	wants("a resync does not count", 0, 1, 0, 1, 2)
}
