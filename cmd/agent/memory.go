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
// resident memory. In BenchmarkProcess, 16 writers write objects of 1 MB during an outage. There, a
// limit of 24 MiB needed 32 MiB of resident memory. A limit of 20 MiB needed 28 MiB and was a
// little slower. Under attack the limits of the webhook bound the memory:
// TestResidentMemoryUnderHostileInput.
const (
	// leastSoftLimit is the limit for a container with 64 MiB, or without a limit.
	leastSoftLimit = 22 << 20
	// reserved is the part of a container that is not for Go memory: the binary, the page cache of
	// the kernel, and the memory that untrusted clients can use. The collector gets half of the
	// rest.
	reserved = 20 << 20
)

// cgroup returns the folder in which a container finds its own limits.
func cgroup() fs.FS { return os.DirFS("/sys/fs/cgroup") }

// limitMemory sets the limit of Go memory unless GOMEMLIMIT is set (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit(cgroup()))
	}
}

func softMemoryLimit(root fs.FS) int64 {
	return max(leastSoftLimit, (containerLimit(root)-reserved)/2)
}

// containerLimit returns 0 if there is no limit. It reads the files of cgroup v2 and v1. Without a
// limit, v1 contains a number that is larger than any memory.
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

// warnOfMemory logs that 85 % of limit are resident, every 10 minutes while this lasts, until ctx
// ends. limit and the result of resident are in bytes. It returns immediately without a limit.
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

// residentMemory returns 0 where the resident memory is unknown (proc_pid_statm(5)).
func residentMemory() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := bytes.Fields(text)
	if len(fields) < 2 { // The second field is the resident memory.
		return 0
	}

	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}
