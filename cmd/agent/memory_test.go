package main

import (
	"testing"
	"testing/fstest"
)

// The collector works harder from half of the memory on that the container can spare.
func TestSoftMemoryLimitFollowsTheContainer(t *testing.T) {
	t.Parallel()
	const v1, v2 = "memory/memory.limit_in_bytes", "memory.max"
	for name, test := range map[string]struct {
		file, text string
		want       int64
	}{
		"no cgroup":              {"other", "", 22 << 20},
		"no limit":               {v2, "max\n", 22 << 20},
		"no limit, v1":           {v1, "9223372036854771712\n", 22 << 20},
		"the manifest":           {v2, "67108864\n", 22 << 20},
		"less":                   {v2, "33554432\n", 22 << 20},
		"for 100,000 objects":    {v2, "268435456\n", 118 << 20},
		"for many objects in v1": {v1, "209715200\n", 90 << 20},
	} {
		root := fstest.MapFS{test.file: {Data: []byte(test.text)}}
		if got := softMemoryLimit(root); got != test.want {
			t.Errorf("%s: soft limit %d, want %d", name, got, test.want)
		}
	}
}
