package chaos_test

import (
	"slices"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
)

const (
	sourceAdmission = "admission"
	sourceInformer  = "informer"
	transportHTTP   = "http"
	transportNATS   = "nats"
)

// informerSeed cuts the watch, kills the operator, and deletes objects that no list has shown.
const informerSeed = 29

// natsSeed kills the NATS server, and then cuts the operator off.
const natsSeed = 172

// setup selects the parts between a write and an operator.
type setup struct {
	source, transport string
	// naive replaces the agents.
	naive bool
}

// check ends the test if there is no such setup.
func (w setup) check(t *testing.T) {
	t.Helper()
	if !slices.Contains([]string{sourceAdmission, sourceInformer}, w.source) {
		t.Fatalf("-source %s: want admission or informer", w.source)
	}

	if !slices.Contains([]string{transportHTTP, transportNATS}, w.transport) {
		t.Fatalf("-transport %s: want http or nats", w.transport)
	}

	if w.source == sourceInformer && w.transport == transportNATS {
		t.Fatal("-source informer with -transport nats: the suite has no such agent")
	}
}

// String is a part of the names of scenes.
func (w setup) String() string {
	switch {
	case w.naive:
		return "naive"
	case w.source == sourceInformer:
		return "informer"
	case w.transport == transportNATS:
		return "nats"
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
	if w.transport == transportNATS {
		kinds[chaos.Unavailable], kinds[chaos.TooMany] = chaos.BrokerKilled, chaos.OperatorCut
	}
	return kinds
}
