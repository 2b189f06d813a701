package lab

import (
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
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

func TestAFlowExcusesOnlyWhatAStallExplains(t *testing.T) {
	t.Parallel()

	const many = 100
	of := Arrival{Runtime: "runtime-1", Manager: "manager"}
	now := time.Now()

	for name, test := range map[string]struct {
		lost       []int
		failedOpen int
		slowest    time.Duration
		resync     time.Time
		want       []int
	}{
		"one is counted":                        {lost: []int{1, 2}, failedOpen: 1, want: []int{1}},
		"more are counted":                      {lost: []int{1}, failedOpen: 9, want: []int{1}},
		"more than one of 20 writes":            {lost: []int{1, 2, 3, 4, 5, 6}, failedOpen: 9, want: []int{1, 2, 3, 4, 5}},
		"a fast machine":                        {lost: []int{1}, slowest: stall / 2, resync: now.Add(time.Hour)},
		"a slow machine, and a resync replaces": {lost: []int{1}, slowest: stall, resync: now.Add(time.Hour), want: []int{1}},
		"a slow machine, and an earlier resync": {lost: []int{1}, slowest: stall, resync: now.Add(-time.Hour)},
		"a slow machine, and no resync":         {lost: []int{1}, slowest: stall},
	} {
		f := &Flow{
			of: of, slowest: test.slowest, failedOpen: func() int { return test.failedOpen },
			arrivals: &Arrivals{resyncs: map[Arrival]time.Time{of: test.resync}},
		}
		for range many {
			f.commits = append(f.commits, now)
		}

		if got := f.excused(test.lost, test.failedOpen); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v are excused, want %v", name, got, test.want)
		}
	}

	if got := new(Flow).excused([]int{1}, 1); len(got) > 0 {
		t.Errorf("a flow that excuses no stall excuses %v", got)
	}
}

func TestJudge(t *testing.T) {
	const object = "a"
	// at is a look at one object, or at all, that found the versions of objects "a" and "b", "" for
	// none.
	at := func(started time.Duration, of, a, b string) record.Look {
		versions := map[string]string{}
		for name, version := range map[string]string{"a": a, "b": b} {
			if version != "" {
				versions[name] = version
			}
		}
		return record.Look{Object: of, Started: started, Versions: versions}
	}

	looks := func(all ...record.Look) []record.Look { return all }
	written := []Write{{object, 7, 10, 20}, {object, 9, 30, 40}}
	deleted := slices.Concat(written, []Write{{object, 0, 50, 60}})
	for name, test := range map[string]struct {
		writes []Write
		looks  []record.Look
		seen   bool
		early  bool
	}{
		"no look":                        {written, nil, false, false},
		"saw it":                         {written, looks(at(41, object, "9", "")), true, false},
		"saw a later version":            {written, looks(at(41, object, "12", "")), true, false},
		"saw it while it was under way":  {written, looks(at(35, object, "9", "")), true, true},
		"saw the one before":             {written, looks(at(41, object, "7", "")), false, false},
		"saw nothing":                    {written, looks(at(41, object, "", "")), false, false},
		"looked at another":              {written, looks(at(41, "b", "", "9")), false, false},
		"looked at all":                  {written, looks(at(41, "", "9", "3")), true, false},
		"saw it only later":              {written, looks(at(35, object, "7", ""), at(50, "", "9", "")), true, false},
		"saw that it is gone":            {deleted, looks(at(61, object, "", "")), true, false},
		"saw that it is gone, by all":    {deleted, looks(at(61, "", "", "3")), true, false},
		"saw it when it should be gone":  {deleted, looks(at(61, object, "9", "")), false, false},
		"saw none before there was one":  {deleted, looks(at(5, object, "", "")), false, false},
		"saw none between the last two":  {deleted, looks(at(45, object, "", "")), true, true},
		"looked at another that is gone": {deleted, looks(at(61, "b", "", "")), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := NewLedger()
			for _, w := range test.writes {
				ledger.Add(w)
			}

			got := ledger.Judge(test.looks)[object]
			if got.Seen != test.seen || got.Early != test.early {
				t.Errorf("seen %t, early %t, want %t and %t: %+v", got.Seen, got.Early, test.seen, test.early, got)
			}
		})
	}
}

func TestFreePortsAreDistinctAndStayFree(t *testing.T) {
	seen := make(map[int]bool)
	for range 200 {
		port := FreePort(t)
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}

		seen[port] = true
		// Twice, on one address and on all, because a process may close its port and open it again.
		for _, host := range []string{"127.0.0.1", ""} {
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			NoError(t, err)
			NoError(t, l.Close())
		}
	}
}
