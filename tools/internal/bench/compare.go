package bench

import (
	"errors"
	"fmt"
	"slices"
)

// tolerance is the growth that is not reported: a share of the old value, and a constant. Pools and
// maps do not take the same memory in each run.
type tolerance struct{ share, constant float64 }

func memoryTolerances() map[string]tolerance {
	return map[string]tolerance{Allocs: {0.05, 1}, Bytes: {0.10, 256}}
}

// timeShare is the slowdown that is not reported.
const timeShare = 0.20

// CompareMemory returns an error for each benchmark that takes more memory than before, or that is
// gone. Medians count.
func CompareMemory(before, after Results) error {
	var errs []error
	for _, name := range before.Names() {
		if after[name] == nil {
			errs = append(errs, fmt.Errorf("%s: gone", name))
			continue
		}
		for _, unit := range []string{Allocs, Bytes} {
			allowed := memoryTolerances()[unit]
			old, now := median(before[name][unit]), median(after[name][unit])
			if now > old*(1+allowed.share)+allowed.constant {
				errs = append(errs, fmt.Errorf("%s: %.0f %s, before %.0f", name, now, unit, old))
			}
		}
	}
	return errors.Join(errs...)
}

// CompareTimes returns an error for each benchmark that became slower: the median by a fifth, and
// every sample slower than all before. Both must be of the same machine.
func CompareTimes(before, after Results) error {
	var errs []error
	for _, name := range before.Names() {
		old, now := before[name][Seconds], after[name][Seconds]
		if len(old) == 0 || len(now) == 0 {
			continue
		}
		if median(now) > median(old)*(1+timeShare) && slices.Min(now) > slices.Max(old) {
			errs = append(errs, fmt.Errorf("%s: %.0f ns/op, before %.0f", name, median(now), median(old)))
		}
	}
	return errors.Join(errs...)
}

// median returns 0 without samples.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}
