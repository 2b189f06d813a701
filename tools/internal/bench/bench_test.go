package bench_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/bench"
)

// output is that of go test -bench, with two samples.
const output = `goos: linux
pkg: example.org/a
BenchmarkX/size=1-2   	 100	 1000 ns/op	 50 MB/s	 2000 B/op	 20 allocs/op
BenchmarkX/size=1-2   	 100	 1100 ns/op	 50 MB/s	 2000 B/op	 20 allocs/op
BenchmarkX/size=2-2   	 100	 10 ns/op	 0 B/op	 0 allocs/op
PASS
pkg: example.org/b
BenchmarkY-of	 100	 10 ns/op
`

// changed returns the output with another text.
func changed(before, after string) bench.Results {
	return bench.Parse(strings.ReplaceAll(output, before, after))
}

func TestCompareMemory(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after bench.Results
		want  string
	}{
		"the same":              {bench.Parse(output), ""},
		"slower":                {changed("1000 ns/op", "9000 ns/op"), ""},
		"fewer":                 {changed("20 allocs/op", "2 allocs/op"), ""},
		"within the tolerance":  {changed("20 allocs/op", "22 allocs/op"), ""},
		"more allocations":      {changed("20 allocs/op", "23 allocs/op"), "a BenchmarkX/size=1: 23 allocs/op, before 20"},
		"more bytes":            {changed("2000 B/op", "2500 B/op"), "a BenchmarkX/size=1: 2500 B/op, before 2000"},
		"from none":             {changed("0 allocs/op", "2 allocs/op"), "a BenchmarkX/size=2: 2 allocs/op, before 0"},
		"gone":                  {changed("BenchmarkY-of", "BenchmarkZ"), "b BenchmarkY-of: gone"},
		"another count of CPUs": {changed("-2 ", "-8 "), ""},
	} {
		got := fmt.Sprint(bench.CompareMemory(bench.Parse(output), tt.after))
		if want := tt.want; want == "" && got != "<nil>" || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", name, got, want)
		}
	}
}

func TestCompareTimes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first, second int
		worse         bool
	}{
		"the same":      {1000, 1100, false},
		"faster":        {100, 110, false},
		"within":        {1150, 1200, false},
		"one slower":    {1000, 5000, false},
		"both slower":   {1400, 1500, true},
		"in the middle": {1099, 5000, false},
	} {
		after := bench.Parse(strings.NewReplacer(
			"1000 ns", fmt.Sprint(tt.first, " ns"), "1100 ns", fmt.Sprint(tt.second, " ns")).Replace(output))
		if err := bench.CompareTimes(bench.Parse(output), after); (err != nil) != tt.worse {
			t.Errorf("%s: got %v, want an error: %v", name, err, tt.worse)
		}
	}
}

func TestSuites(t *testing.T) {
	t.Parallel()
	const want = "[{example.org/a ^BenchmarkX$} {example.org/b ^BenchmarkY-of$}]"
	if got := fmt.Sprint(bench.Parse(output).Suites()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	inA := bench.Parse(output).Of(func(n bench.Name) bool { return n.Package == "example.org/a" })
	if names := fmt.Sprint(inA.Names()); names != "[example.org/a BenchmarkX/size=1 example.org/a BenchmarkX/size=2]" {
		t.Errorf("got %s", names)
	}
}
