package fleet

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	minInterval     = time.Second
	maxInterval     = time.Hour
	defaultInterval = 30 * time.Second
	// straggler is longer than a request can be under way: a heartbeat with a lower number that
	// comes later belongs to a restarted sequence.
	straggler = time.Minute
)

// interval is the longest time between two heartbeats of a sender, as its last one says.
func interval(heartbeat *core.Heartbeat) time.Duration {
	if heartbeat == nil || heartbeat.Interval <= 0 {
		return defaultInterval
	}
	return min(max(heartbeat.Interval, minInterval), maxInterval)
}

// patience is the silence after which a sender is silent.
func patience(heartbeat *core.Heartbeat) time.Duration { return 2 * interval(heartbeat) }

// defaultPatience is the patience with a runtime before its first heartbeat.
func defaultPatience() time.Duration { return patience(nil) }

func drops(heartbeat *core.Heartbeat) (n int64) {
	for _, dropped := range heartbeat.Dropped {
		n += dropped
	}
	return n
}

// Bounds on a heartbeat that is kept: about 6 KiB.
const (
	maxText         = 256
	maxFingerprints = 32
	maxReasons      = 16
)

// bound copies a heartbeat, which is foreign input.
func bound(heartbeat *core.Heartbeat) *core.Heartbeat {
	b := *heartbeat
	for _, text := range []*string{
		&b.ID, &b.Instance, &b.Version, &b.CertificateFingerprint, &b.KeyMaterialError, &b.ConfigHash, &b.ConfigError,
		&b.CanaryError, &b.WebhookError, (*string)(&b.Canary), (*string)(&b.Interruption.Reason), &b.Interruption.Error,
	} {
		*text = boundText(*text)
	}

	b.CAFingerprints = make([]string, min(len(heartbeat.CAFingerprints), maxFingerprints))
	for i := range b.CAFingerprints {
		b.CAFingerprints[i] = boundText(heartbeat.CAFingerprints[i])
	}

	b.Dropped = make(map[core.Reason]int64, min(len(heartbeat.Dropped), maxReasons))
	for i, reason := range slices.Sorted(maps.Keys(heartbeat.Dropped)) {
		if i >= maxReasons-1 {
			b.Dropped["other"] += heartbeat.Dropped[reason]
		} else {
			b.Dropped[core.Reason(boundText(string(reason)))] += heartbeat.Dropped[reason]
		}
	}

	return &b
}

func boundText(text string) string { return strings.Clone(text[:min(len(text), maxText)]) }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
