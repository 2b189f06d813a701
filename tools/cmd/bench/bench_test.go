package main

import (
	"fmt"
	"strings"
	"testing"
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
BenchmarkServer/x	 100	 10 ns/op
BenchmarkT	 100	 10 ns/op	 1.25 bare
BenchmarkT	 100	 10 ns/op	 1.25 bare
BenchmarkT	 100	 10 ns/op	 1.25 bare
BenchmarkU	 100	 10 ns/op	 1.5 bare
`

func TestWorse(t *testing.T) {
	for title, test := range map[string]struct{ before, after, want string }{
		"the same":              {"", "", ""},
		"slower":                {"1000 ns/op", "9000 ns/op", ""},
		"fewer":                 {"20 allocs/op", "2 allocs/op", ""},
		"within the tolerance":  {"20 allocs/op", "22 allocs/op", ""},
		"more allocations":      {"20 allocs/op", "23 allocs/op", "a BenchmarkX/size=1: 23 allocs/op, before 20"},
		"more bytes":            {"2000 B/op", "2500 B/op", "a BenchmarkX/size=1: 2500 B/op, before 2000"},
		"from none":             {"0 allocs/op", "2 allocs/op", "a BenchmarkX/size=2: 2 allocs/op, before 0"},
		"slower than its twin":  {"1.25 bare", "1.5 bare", "b BenchmarkT: 1.5 bare, before 1.25"},
		"a ratio of one run":    {"1.5 bare", "15 bare", ""},
		"gone":                  {"BenchmarkY-of", "BenchmarkZ", "b BenchmarkY-of: gone"},
		"another count of CPUs": {"-2 ", "-8 ", ""},
		"several clients":       {"BenchmarkServer/x", "BenchmarkServer/y", ""},
	} {
		after := parse(output)
		if test.before != "" {
			after = parse(strings.ReplaceAll(output, test.before, test.after))
		}
		got := fmt.Sprint(worse(parse(output), after, single))
		if test.want == "" && got != "<nil>" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %s, want %q", title, got, test.want)
		}
	}
	if err := worse(parse(output), measured{}, everything); !strings.Contains(err.Error(), "BenchmarkServer/x: gone") {
		t.Errorf("%v, want all that are gone", err)
	}
}
