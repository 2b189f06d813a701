package lab_test

import (
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

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
	written := []lab.Write{{object, 7, 10, 20}, {object, 9, 30, 40}}
	deleted := slices.Concat(written, []lab.Write{{object, 0, 50, 60}})
	for name, test := range map[string]struct {
		writes []lab.Write
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
			ledger := lab.NewLedger()
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
