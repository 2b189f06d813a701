package keys

import (
	"errors"
	"testing"
)

// TestGenerationsNeverMix reads a CA and a certificate while both are replaced.
func TestGenerationsNeverMix(t *testing.T) {
	t.Parallel()

	of := func(ca, cert string) snapshot { return snapshot{ca: []byte(ca), cert: []byte(cert), key: []byte(cert)} }
	old := of("old", "old")
	mixed := of("old", "new")
	next := of("new", "new")
	gone := errors.New("gone")

	for name, tc := range map[string]struct {
		readings []any // the last of them for ever
		want     snapshot
		err      error
	}{
		"quiet":                     {[]any{old}, old, nil},
		"swapped while reading":     {[]any{mixed, next}, next, nil},
		"swapped between":           {[]any{old, next}, next, nil},
		"swapped in later readings": {[]any{old, mixed, next}, next, nil},
		"gone for a moment":         {[]any{gone, next}, next, nil},
		"gone":                      {[]any{gone}, snapshot{}, gone},
		"never quiet": {
			[]any{old, next, old, next, old, next, old, next, old, next},
			snapshot{},
			errChanging,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			count := 0
			got, err := settled(func() (snapshot, error) {
				reading := tc.readings[min(count, len(tc.readings)-1)]
				count++
				if files, ok := reading.(snapshot); ok {
					return files, nil
				}
				return snapshot{}, gone
			})
			if !got.equal(tc.want) || !errors.Is(err, tc.err) {
				t.Errorf("have %s, %v; want %s, %v", got, err, tc.want, tc.err)
			}
		})
	}
}
