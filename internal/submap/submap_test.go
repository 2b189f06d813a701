package submap_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/internal/submap"
)

func TestContains(t *testing.T) {
	all := map[string]string{"a": "1", "empty": ""}
	tests := map[string]struct {
		part map[string]string
		want bool
	}{
		"nothing":             {nil, true},
		"an entry":            {map[string]string{"a": "1"}, true},
		"the same":            {all, true},
		"another value":       {map[string]string{"a": "2"}, false},
		"a missing entry":     {map[string]string{"a": "1", "b": "1"}, false},
		"empty, not missing":  {map[string]string{"empty": ""}, true},
		"missing, with empty": {map[string]string{"b": ""}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := submap.Contains(all, test.part); got != test.want {
				t.Errorf("contains: %t, want %t", got, test.want)
			}
		})
	}
}
