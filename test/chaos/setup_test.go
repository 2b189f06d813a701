package chaos_test

import (
	"slices"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
)

const (
	sourceAdmission = "admission"
	sourceInformer  = "informer"
)

// informerSeed kills the only agent, which starts again while its watch cannot be established.
const informerSeed = 0

// setup selects the parts between a write and an operator.
type setup struct {
	source string
	// naive replaces the agents.
	naive bool
}

// check ends the test if there is no such setup.
func (w setup) check(t *testing.T) {
	t.Helper()
	if !slices.Contains([]string{sourceAdmission, sourceInformer}, w.source) {
		t.Fatalf("-source %s: want admission or informer", w.source)
	}
}

// String is a part of the names of scenes.
func (w setup) String() string {
	switch {
	case w.naive:
		return "naive"
	case w.source == sourceInformer:
		return "informer"
	default:
		return "chaos"
	}
}

// faults replaces those that do not apply.
func (w setup) faults() map[chaos.Kind]chaos.Kind {
	kinds := make(map[chaos.Kind]chaos.Kind)
	if w.source == sourceInformer {
		kinds[chaos.WebhookRemoved] = chaos.WatchLost
	}

	if w.source == sourceInformer && *expired {
		kinds[chaos.WebhookRemoved] = chaos.VersionExpired
	}
	return kinds
}
