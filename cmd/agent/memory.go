package main

import "runtime/debug"

// softMemoryLimit is where the collector begins to work harder, in bytes of Go memory.
const softMemoryLimit = 24 << 20

// limitMemory leaves the choice to GOMEMLIMIT where it is set (package runtime).
func limitMemory(getenv func(string) string) {
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit)
	}
}
