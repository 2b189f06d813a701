package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// name identifies a benchmark.
type name struct{ pkg, benchmark string }

func (n name) String() string { return n.pkg + " " + n.benchmark }

// measured are the samples of each benchmark, by unit.
type measured map[name]map[string][]float64

// runSuites runs the suites one after the other and returns the output, which it also writes to
// progress. Two processors are used, because the number of allocations depends on their number.
func runSuites(ctx context.Context, progress io.Writer, suites []suite, args ...string) (string, error) {
	var all bytes.Buffer
	for _, s := range suites {
		cmd := exec.CommandContext(ctx, "go", slices.Concat(
			[]string{"test", "-run", "^$", "-bench", s.pattern, "-benchmem", "-cpu", "2", "-timeout", "1h"},
			args, s.args, []string{s.pkg})...)
		cmd.Stdout = io.MultiWriter(&all, progress)
		cmd.Stderr = cmd.Stdout
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("benchmarks %s of %s: %w\n%s", s.pattern, s.pkg, err, all.String())
		}
	}
	return all.String(), nil
}

// parse reads the output of go test -bench. Other lines are ignored.
func parse(text string) measured {
	results := measured{}
	pkg := ""

	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "pkg:":
			pkg = fields[1]
		case len(fields) > 2 && strings.HasPrefix(fields[0], "Benchmark"):
			results.add(name{pkg, processors.ReplaceAllString(fields[0], "")}, fields[2:])
		}
	}

	return results
}

// processors is the suffix of a name with their number.
var processors = regexp.MustCompile(`-\d+$`)

// add adds the values of a line: numbers, and their units.
func (m measured) add(n name, values []string) {
	if m[n] == nil {
		m[n] = map[string][]float64{}
	}

	for pair := range slices.Chunk(values, 2) {
		if value, err := strconv.ParseFloat(pair[0], 64); err == nil && len(pair) == 2 {
			m[n][pair[1]] = append(m[n][pair[1]], value)
		}
	}
}

// tolerances are the growth that is not reported: a share of the old value, and a constant. Pools
// and maps do not take the same memory in each run. The least memory of a benchmark counts, because
// other work on the machine only adds memory. Collections empty pools, and a run with few
// operations contains more of the memory of its start. "bare" is the ratio to a bare twin in the
// same run, of which the median counts.
func tolerances() map[string]tolerance {
	return map[string]tolerance{
		"allocs/op": {least, 0.05, 1, 1},
		"B/op":      {least, 0.10, 256, 1},
		"bare":      {median, 0.15, 0, several},
	}
}

type tolerance struct {
	// value returns the value that counts, from all samples.
	value func(samples []float64) float64

	share, constant float64
	// samples is the smallest number of samples on both sides that are compared.
	samples int
}

const several = 3

// worse returns an error for each benchmark that takes more memory than before, or more time
// relative to its bare twin, or that no longer exists.
func worse(before, after measured, counts func(name) bool) error {
	byName := func(a, b name) int { return strings.Compare(a.String(), b.String()) }
	var errs []error
	for _, n := range slices.SortedFunc(maps.Keys(before), byName) {
		if !counts(n) {
			continue
		}
		if after[n] == nil {
			errs = append(errs, fmt.Errorf("%s: gone", n))
		}

		for unit, allowed := range tolerances() {
			old := allowed.value(before[n][unit])
			now := allowed.value(after[n][unit])
			enough := min(len(before[n][unit]), len(after[n][unit])) >= allowed.samples
			if enough && now > old*(1+allowed.share)+allowed.constant {
				errs = append(errs, fmt.Errorf("%s: %.4g %s, before %.4g", n, now, unit, old))
			}
		}
	}

	return errors.Join(errs...)
}

// limits are the largest medians of each benchmark of package change, by unit, on an idle machine
// of two cores.
func limits() map[string]map[string]float64 {
	return map[string]map[string]float64{
		"BenchmarkChange/rate=1":    {"requests/change": 1.7, "p50-ms": 15, "p99-ms": 100, "bare": 7},
		"BenchmarkChange/rate=10":   {"requests/change": 1.15, "p50-ms": 15, "p99-ms": 100, "bare": 3.6},
		"BenchmarkChange/rate=100":  {"requests/change": 0.2, "bare": 1.6},
		"BenchmarkChange/rate=1000": {"requests/change": 0.025, "bare": 1.25},
	}
}

// beyond returns an error for each result above its limit, and for each limit without a result.
func beyond(now measured) error {
	medians := make(map[string]map[string]float64)
	for n, units := range now {
		medians[n.benchmark] = make(map[string]float64)
		for unit, samples := range units {
			medians[n.benchmark][unit] = median(samples)
		}
	}

	var errs []error
	for _, benchmark := range slices.Sorted(maps.Keys(limits())) {
		for unit, limit := range limits()[benchmark] {
			value, isMeasured := medians[benchmark][unit]
			switch {
			case !isMeasured:
				errs = append(errs, fmt.Errorf("%s: no %s, want at most %.4g", benchmark, unit, limit))
			case value > limit:
				errs = append(errs, fmt.Errorf("%s: %.4g %s, want at most %.4g", benchmark, value, unit, limit))
			}
		}
	}

	return errors.Join(errs...)
}

// least returns 0 without samples.
func least(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	return slices.Min(samples)
}

// median returns 0 without samples.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(samples))[len(samples)/2]
}

var concurrent = regexp.MustCompile(`^BenchmarkServer/|^BenchmarkChange/|/inflight=8$|/runtimes=(4|16)/`)

func everything(name) bool { return true }

// single reports whether a benchmark has one client, and is part of a brief run. Several clients
// connect during the first operations, so a short run takes more memory.
func single(n name) bool { return !concurrent.MatchString(n.benchmark) }
