package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

// Each rule has a check, and each check a rule.
func TestRulesAndChecksAreTheSame(t *testing.T) {
	t.Parallel()

	var checked, ruled []string
	add := func(end conformance.End, rule string) { checked = append(checked, string(end)+"/"+rule) }
	coretest.CheckReceiver(coretest.RemoteReceiver{}, coretest.ReceiverOptions{}, func(rule string, _ func(coretest.T)) {
		add(conformance.Receiver, rule)
	})

	for _, trial := range (&player{}).trials() {
		add(conformance.Receiver, trial.rule)
	}

	for rule := range senderChecks() {
		add(conformance.Sender, rule)
	}

	for _, rule := range conformance.Rules() {
		if rule.End != conformance.Forwarder { // core/coretest compares those.
			ruled = append(ruled, string(rule.End)+"/"+rule.ID)
		}
	}

	slices.Sort(checked)
	slices.Sort(ruled)

	if diff := cmp.Diff(ruled, slices.Compact(checked)); diff != "" {
		t.Errorf("the checks (-rules +checks):\n%s", diff)
	}
}
