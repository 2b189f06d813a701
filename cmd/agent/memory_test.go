package main

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
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

// The log names the memory before the container ends the agent for it, once in ten minutes.
func TestMemoryNearTheLimitIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit, resident int64
		want            int
	}{
		"below":    {64 << 20, 54 << 20, 0},
		"near":     {64 << 20, 55 << 20, 3},
		"no limit": {0, 1 << 40, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				ctx, stop := context.WithTimeout(t.Context(), 25*time.Minute)
				defer stop()
				warnOfMemory(ctx, slog.New(slog.NewJSONHandler(&log, nil)), test.limit, func() int64 { return test.resident })
				line := `"msg":"memory is near the limit of the container","resident_mib":55,"limit_mib":64`
				if lines := strings.Count(log.String(), "\n"); lines != test.want || strings.Count(log.String(), line) != lines {
					t.Errorf("log:\n%s\nwant %d lines with %s", log.String(), test.want, line)
				}
			})
		})
	}
	if runtime.GOOS == "linux" && residentMemory() < 1<<20 {
		t.Errorf("resident memory of this process: %d bytes", residentMemory())
	}
}
