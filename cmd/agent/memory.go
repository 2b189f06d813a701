package main

import (
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// The size of Go memory in bytes at which the collector works harder. The binary adds 8 MiB to the
// resident memory. BenchmarkProcess has 16 writers of objects of 1 MB in an outage: there, 24 MiB
// became 32 MiB resident. 20 MiB became 28 MiB, a little slower. Under attack the limits of the
// webhook bound the memory: TestResidentMemoryUnderHostileInput.
const (
	// leastSoftLimit is that of a container with 64 MiB, or without a limit.
	leastSoftLimit = 22 << 20
	// reserved is the part of a container that is not for Go memory: the binary, the page cache of
	// the kernel, and the memory that strangers can take. The collector gets half of the rest.
	reserved = 20 << 20
)

// limitMemory sets the limit unless GOMEMLIMIT does (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit(os.DirFS("/sys/fs/cgroup")))
	}
}

// softMemoryLimit returns the limit for the container with the cgroup that is mounted at root.
func softMemoryLimit(root fs.FS) int64 {
	return max(leastSoftLimit, (containerLimit(root)-reserved)/2)
}

// containerLimit returns 0 for none. The files are those of cgroup v2 and of v1, which has a number
// above all memory for none.
func containerLimit(root fs.FS) int64 {
	const noLimit = 1 << 50
	for _, file := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && limit < noLimit {
			return limit
		}
	}
	return 0
}
