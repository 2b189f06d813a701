package main

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

// Each rule has a check, and each check a rule.
func TestRulesAndChecksAreTheSame(t *testing.T) {
	t.Parallel()
	checked := map[string]bool{}
	add := func(end conformance.End, rule string) { checked[string(end)+"/"+rule] = true }
	coretest.CheckReceiver(coretest.RemoteReceiver{}, coretest.ReceiverOptions{}, func(rule string, _ func(coretest.T)) {
		add(conformance.Receiver, rule)
	})
	for rule := range receiverChecks() {
		add(conformance.Receiver, rule)
	}
	for _, trial := range (&player{}).allTrials() {
		add(conformance.Receiver, trial.rule)
	}
	for rule := range senderChecks() {
		add(conformance.Sender, rule)
	}
	for _, rule := range conformance.Rules() {
		key := string(rule.End) + "/" + rule.ID
		if !checked[key] {
			t.Errorf("%s has no check", key)
		}
		delete(checked, key)
	}
	for key := range checked {
		t.Errorf("the check of %s has no rule", key)
	}
}
