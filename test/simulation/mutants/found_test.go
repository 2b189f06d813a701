package main

import (
	"slices"
	"testing"
)

// TestSomeMutantsAreFound builds a few mutants. The command tries them all.
func TestSomeMutantsAreFound(t *testing.T) {
	t.Parallel()
	const seeds = 200
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"outbox: nothing is resent (row 54)", "fleet: fresh without proof (row 26)", "contract: a heartbeat is not cut (row 27)",
	} {
		all := table()
		i := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
		if i < 0 {
			t.Fatalf("want a mutant %q", name)
		}
		found, text, err := all[i].try(t.Context(), root, seeds)
		if err != nil || !found {
			t.Errorf("%s: %s, error %v; want it to be found", name, text, err)
		}
	}
}
