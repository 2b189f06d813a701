package bench

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The units of results.
const (
	Seconds = "ns/op"
	Bytes   = "B/op"
	Allocs  = "allocs/op"
)

// BaselineFile has the agreed results, relative to the root of the repository.
const BaselineFile = "tools/bench-baseline.txt"

// Name identifies a benchmark.
type Name struct{ Package, Benchmark string }

func (n Name) String() string { return n.Package + " " + n.Benchmark }

// Results are the samples of each benchmark, by unit.
type Results map[Name]map[string][]float64

// Parse reads the output of go test -bench. Other lines are ignored.
func Parse(text string) Results {
	results := Results{}
	pkg := ""
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "pkg:":
			pkg = fields[1]
		case len(fields) > 2 && strings.HasPrefix(fields[0], "Benchmark"):
			results.add(Name{pkg, withoutProcessors(fields[0])}, fields[2:])
		}
	}
	return results
}

// withoutProcessors removes the suffix with the number of processors.
func withoutProcessors(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}

// add adds the values of a line: numbers, and their units.
func (r Results) add(name Name, values []string) {
	if r[name] == nil {
		r[name] = map[string][]float64{}
	}
	for pair := range slices.Chunk(values, 2) {
		if value, err := strconv.ParseFloat(pair[0], 64); err == nil && len(pair) == 2 {
			r[name][pair[1]] = append(r[name][pair[1]], value)
		}
	}
}

// Names returns all benchmarks, sorted.
func (r Results) Names() []Name {
	return slices.SortedFunc(maps.Keys(r), func(a, b Name) int { return strings.Compare(a.String(), b.String()) })
}

// Of returns the results of the benchmarks for which of returns true.
func (r Results) Of(of func(Name) bool) Results {
	some := maps.Clone(r)
	maps.DeleteFunc(some, func(name Name, _ map[string][]float64) bool { return !of(name) })
	return some
}

var concurrent = regexp.MustCompile(`^BenchmarkServer/|/inflight=8$|/runtimes=(4|16)/`)

// Concurrent reports whether a benchmark has several clients. They connect during its first
// operations, so a short run takes more memory.
func (n Name) Concurrent() bool { return concurrent.MatchString(n.Benchmark) }
