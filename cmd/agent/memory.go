package main

import "runtime/debug"

// softMemoryLimit is the size of Go memory in bytes at which the collector works harder. The binary
// adds 8 MiB to the resident memory. BenchmarkProcess has 16 writers of objects of 1 MB in an
// outage: there, 24 MiB became 32 MiB resident. 20 MiB became 28 MiB, a little slower. Under attack
// the limits of the webhook bound the memory: TestResidentMemoryUnderHostileInput.
const softMemoryLimit = 22 << 20

// limitMemory sets the limit unless GOMEMLIMIT does (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit)
	}
}
