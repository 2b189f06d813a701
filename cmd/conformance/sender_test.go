package main

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The last heartbeat counts the resends that are left: two for each event that was delivered.
func TestLastHeartbeat(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		last      *core.Heartbeat
		delivered int
		want      string
	}{
		"nothing is left":     {&core.Heartbeat{Leaving: true}, 2, ""},
		"one resend":          {&core.Heartbeat{Leaving: true, Pending: 1}, 2, ""},
		"all resends":         {&core.Heartbeat{Leaving: true, Pending: 4}, 2, ""},
		"more than resends":   {&core.Heartbeat{Leaving: true, Pending: 5}, 2, "counts 5 resends that are left, and 2 events were delivered"},
		"nothing delivered":   {&core.Heartbeat{Leaving: true, Pending: 1}, 0, "want at most 0"},
		"an ordinary one":     {&core.Heartbeat{}, 2, "no leaving: true"},
		"no heartbeat at all": {nil, 2, "the last request has no heartbeat"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := &farEnd{verdict: &verdict{}}
			f.checkLastHeartbeat(test.last, test.delivered)
			have := strings.Join(f.faults, "\n")
			if (have == "") != (test.want == "") || !strings.Contains(have, test.want) || strings.ContainsAny(have, "{}&") {
				t.Errorf("faults %q, want %q in words", have, test.want)
			}
		})
	}
}

func TestOwnerFlag(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"": true, "fleet/a": true, "a": false, "/a": false, "a/": false, "a/b/c": false} {
		if err := new(settings).parseOwner(text); (err == nil) != ok {
			t.Errorf("-owner=%s: %v, want it taken: %v", text, err, ok)
		}
	}
}
