package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// OtherVersions is the key in [Summary].Versions for all versions without their own key: versions
// beyond the first eight, and texts that do not look like a version.
const OtherVersions = "other"

// The version is foreign input, and a label of a metric.
const (
	maxVersions      = 8
	maxVersionLength = 64
)

// Versions returns the versions of the agents, sorted and without duplicates. For a stale runtime
// it returns no versions.
func (s *Status) Versions() []string {
	if s.State == Stale {
		return nil
	}

	var versions []string
	for _, p := range s.Replicas {
		if p.Heartbeat != nil && p.Heartbeat.Version != "" {
			versions = append(versions, p.Heartbeat.Version)
		}
	}

	slices.Sort(versions)
	return slices.Compact(versions)
}

// versions has each version once. A text that does not look like a version counts as other.
func (r *record) versions(now time.Time) []string {
	var versions []string
	for _, p := range r.replicas {
		if !p.isAlive(now) || p.heartbeat.Version == "" {
			continue
		}

		version := p.heartbeat.Version
		if !isVersion(version) {
			version = OtherVersions
		}
		if !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}

	return versions
}

func isVersion(text string) bool {
	return len(text) <= maxVersionLength && strings.IndexFunc(text, isForeignToVersions) < 0
}

// isForeignToVersions allows the characters of semantic versions, of pseudo-versions of Go, and of
// image tags.
func isForeignToVersions(c rune) bool {
	isLower := c >= 'a' && c <= 'z'
	isUpper := c >= 'A' && c <= 'Z'
	isDigit := c >= '0' && c <= '9'
	isSign := strings.ContainsRune(".+-_", c)
	return !isLower && !isUpper && !isDigit && !isSign
}

// boundVersions keeps the versions with the most runtimes and adds up the rest.
func boundVersions(counts map[string]int) map[string]int {
	others := counts[OtherVersions]
	delete(counts, OtherVersions)

	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})

	bounded := make(map[string]int, min(len(names), maxVersions+1))
	for i, name := range names {
		if i < maxVersions {
			bounded[name] = counts[name]
		} else {
			others += counts[name]
		}
	}

	if others > 0 {
		bounded[OtherVersions] = others
	}
	return bounded
}
