package main

import "runtime/debug"

// softMemoryLimit is the size of Go memory in bytes at which the collector works harder. The binary adds
// 8 MiB to the resident memory. In BenchmarkProcess, with 16 writers of objects of 1 MB in an outage, 24
// MiB became 32 MiB resident, and 20 MiB became 28 MiB, a little slower. Under attack the memory is
// bounded by the limits of the webhook: TestResidentMemoryUnderHostileInput.
const softMemoryLimit = 22 << 20

// limitMemory sets the limit unless GOMEMLIMIT does (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit)
	}
}
