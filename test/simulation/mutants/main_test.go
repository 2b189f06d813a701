package main

import "testing"

// The table must follow the code: a mutant that does not apply proves nothing.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range table() {
		if _, err := m.apply(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
