package coretest

import (
	"maps"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// clone returns a batch that shares no memory with the original.
func clone(batch core.Batch) core.Batch {
	batch.Events = slices.Clone(batch.Events)
	if batch.Heartbeat != nil {
		beat := *batch.Heartbeat
		beat.Dropped = maps.Clone(beat.Dropped)
		beat.CAFingerprints = slices.Clone(beat.CAFingerprints)
		batch.Heartbeat = &beat
	}
	return batch
}
