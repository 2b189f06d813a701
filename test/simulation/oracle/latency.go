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
	for t, commits := range h.commits {
		if h.promise.Refused[t.object] || h.promise.Runtimes[t.runtime].Refused {
			continue
		}
		for _, c := range commits {
			if seen, ok := h.firstLook(t, c.version); ok {
				all = append(all, max(seen.Sub(c.at), 0))
			} else {
				all = append(all, givenUp)
			}
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
