package main

import (
	"cmp"
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
		"beside other work":     {"1100 ns/op	 50 MB/s	 2000 B/op", "1100 ns/op	 50 MB/s	 9000 B/op", ""},
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

// changes is the output of package change, within the limits.
const changes = `pkg: example.org/change
BenchmarkChange/rate=1-2     1  37366509624 ns/op  5.6 bare   2161 cpu-µs/change  10.8 p50-ms   61.2 p99-ms  1.13 requests/change
BenchmarkChange/rate=10-2    1  18298678733 ns/op  2.9 bare   1059 cpu-µs/change  10.9 p50-ms   39.0 p99-ms  1.00 requests/change
BenchmarkChange/rate=100-2   1  13235399074 ns/op  1.3 bare    430 cpu-µs/change  60.5 p50-ms  112.0 p99-ms  0.10 requests/change
BenchmarkChange/rate=1000-2  1   9270120479 ns/op  1.0 bare    185 cpu-µs/change  69.4 p50-ms  191.2 p99-ms  0.01 requests/change
`

func TestBeyond(t *testing.T) {
	for title, test := range map[string]struct{ before, after, want string }{
		"within the limits":   {"", "", ""},
		"no limit":            {"60.5 p50-ms", "605 p50-ms", ""},
		"too much work alone": {"5.6 bare", "7.6 bare", "BenchmarkChange/rate=1: 7.6 bare, want at most 7"},
		"too many requests":   {"0.10 requests", "1.60 requests", "BenchmarkChange/rate=100: 1.6 requests/change, want at most 0.2"},
		"too late":            {"10.8 p50-ms", "104 p50-ms", "BenchmarkChange/rate=1: 104 p50-ms, want at most 15"},
		"the slowest of 100":  {"39.0 p99-ms", "390 p99-ms", "BenchmarkChange/rate=10: 390 p99-ms"},
		"too much work":       {"1.0 bare", "2.4 bare", "BenchmarkChange/rate=1000: 2.4 bare"},
		"not measured":        {"rate=100-", "rate=99-", "BenchmarkChange/rate=100: no "},
	} {
		got := fmt.Sprint(beyond(parse(strings.ReplaceAll(changes, cmp.Or(test.before, "-2"), cmp.Or(test.after, "-2")))))
		if test.want == "" && got != "<nil>" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %s, want %q", title, got, test.want)
		}
	}
}
