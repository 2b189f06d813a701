package oracle

import (
	"slices"
	"time"
)

// Latencies returns the times from a commit to the first look, of all objects that are not refused.
func (h *History) Latencies() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []time.Duration
	for key, commits := range h.commits {
		if h.promise.Refused[key[1]] || h.promise.Runtimes[key[0]].Refused {
			continue
		}
		for _, c := range commits {
			all = append(all, h.latencies(key, c)...)
		}
	}
	return all
}

func (h *History) latencies(key [2]string, c commit) (all []time.Duration) {
	for _, manager := range h.promise.Watches[key[1]] {
		if seen, ok := h.firstLook(target{key[0], key[1], manager}, c.version); ok {
			all = append(all, max(seen.Sub(c.at), 0))
		} else {
			all = append(all, givenUp)
		}
	}
	return all
}

// Quantile returns the value below which that part of all values is.
func Quantile(all []time.Duration, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}
