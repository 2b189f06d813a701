package main

import "runtime/debug"

// softMemoryLimit is where the collector begins to work harder, in bytes of Go memory; the binary itself adds 8 MiB to what is
// resident. BenchmarkProcess decided: during an outage, with 16 writers of objects of 1 MB, 24 MiB of it became 32 MiB resident, and 20 MiB
// became 28 MiB, a little slower.
const softMemoryLimit = 22 << 20

// limitMemory leaves the choice to GOMEMLIMIT where it is set (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit)
	}
}
