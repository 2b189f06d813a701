package main

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
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

// cgroup is where a container finds its own limits.
func cgroup() fs.FS { return os.DirFS("/sys/fs/cgroup") }

// limitMemory sets the limit unless GOMEMLIMIT does (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit(cgroup()))
	}
}

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

		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || limit >= noLimit {
			continue
		}
		return limit
	}
	return 0
}

const (
	memoryReview   = 10 * time.Second
	memoryReminder = 10 * time.Minute
)

// warnOfMemory logs that 85 % of limit are resident, every 10 minutes while it lasts, until ctx
// ends. Both are in bytes. It returns immediately without a limit.
func warnOfMemory(ctx context.Context, log *slog.Logger, limit int64, resident func() int64) {
	const percent, mebi = 85, 1 << 20

	if limit == 0 {
		return
	}

	log = pacedlog.New(log, memoryReminder)
	periodic.Call(ctx, memoryReview, func() {
		if used := resident(); used > limit/100*percent {
			log.WarnContext(ctx, "memory is near the limit of the container", slog.Int64("resident_mib", used/mebi),
				slog.Int64("limit_mib", limit/mebi))
		}
	})
}

// residentMemory returns 0 where that is unknown (proc_pid_statm(5)).
func residentMemory() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := bytes.Fields(text)
	if len(fields) < 2 { // The second one is the resident part.
		return 0
	}

	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}
