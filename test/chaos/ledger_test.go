package chaos_test

import (
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
	"github.com/runtime-watcher/runtime-watcher/test/chaos/record"
)

func TestJudge(t *testing.T) {
	const object = "a"
	look := func(started time.Duration, of string, versions map[string]string) record.Look {
		return record.Look{Object: of, Started: started, Versions: versions}
	}
	written := []chaos.Write{{object, 7, 10, 20}, {object, 9, 30, 40}}
	deleted := slices.Concat(written, []chaos.Write{{object, 0, 50, 60}})
	for name, test := range map[string]struct {
		writes []chaos.Write
		looks  []record.Look
		seen   bool
		early  bool
	}{
		"no look":                        {written, nil, false, false},
		"saw it":                         {written, []record.Look{look(41, object, map[string]string{object: "9"})}, true, false},
		"saw a later version":            {written, []record.Look{look(41, object, map[string]string{object: "12"})}, true, false},
		"saw it while it was under way":  {written, []record.Look{look(35, object, map[string]string{object: "9"})}, true, true},
		"saw the one before":             {written, []record.Look{look(41, object, map[string]string{object: "7"})}, false, false},
		"saw nothing":                    {written, []record.Look{look(41, object, nil)}, false, false},
		"looked at another":              {written, []record.Look{look(41, "b", map[string]string{"b": "9"})}, false, false},
		"looked at all":                  {written, []record.Look{look(41, "", map[string]string{object: "9", "b": "3"})}, true, false},
		"saw it only later":              {written, []record.Look{look(35, object, map[string]string{object: "7"}), look(50, "", map[string]string{object: "9"})}, true, false},
		"saw that it is gone":            {deleted, []record.Look{look(61, object, nil)}, true, false},
		"saw that it is gone, by all":    {deleted, []record.Look{look(61, "", map[string]string{"b": "3"})}, true, false},
		"saw it when it should be gone":  {deleted, []record.Look{look(61, object, map[string]string{object: "9"})}, false, false},
		"saw none before there was one":  {deleted, []record.Look{look(5, object, nil)}, false, false},
		"saw none between the last two":  {deleted, []record.Look{look(45, object, nil)}, true, true},
		"looked at another that is gone": {deleted, []record.Look{look(61, "b", nil)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := chaos.NewLedger()
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
