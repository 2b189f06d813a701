// Command bench compares the benchmarks of event delivery with a stored baseline. Run it with make
// bench-compare. benchstat prints the table. The verdict is about bytes, allocations and the ratio
// to a bare twin in the same run, because times depend on the machine. The price of a change also
// has limits: requests, the ratio to a bare webhook, and the time to the reconcile. With -memory,
// it runs the benchmarks briefly, prints no table, and judges only the memory of benchmarks with
// one client.
//
// It runs at the root of the repository, with benchstat in the PATH.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

const (
	baseline = "tools/bench-baseline.txt"
	results  = "bin/bench.txt"
)

// suites are the benchmarks of the baseline. Each allocates nearly the same in each run.
var suites = []suite{
	{pkg: "./core/contract", pattern: "^BenchmarkBatch$"},
	{pkg: "./core/outbox", pattern: "^BenchmarkAccept$"},
	{pkg: "./adapters/admission", pattern: "^(BenchmarkReview|BenchmarkDryRun)$"},
	{pkg: "./adapters/httpmtls", pattern: "^BenchmarkForward$"},
	{pkg: "./adapters/controllerruntime", pattern: "^BenchmarkEnqueueByRuntime$"},
	{pkg: "./listener", pattern: "^(BenchmarkServeHTTP|BenchmarkServer)$/^(handshake|connection|header)"},
	{pkg: "./test/bench/paths", pattern: "^BenchmarkV3$"},
	// This benchmark has limits instead of a baseline, and an iteration takes up to half a minute.
	{
		pkg: "./test/bench/change", pattern: "^BenchmarkChange$", isLong: true,
		args: []string{"-benchmem=false", "-count", "3", "-benchtime", "1x"},
	},
}

// suite selects the benchmarks of a package that match a regular expression of go test -bench.
type suite struct {
	pkg, pattern string
	// args replace the usual ones of go test.
	args []string
	// isLong leaves the suite out of a brief run.
	isLong bool
}

func main() { os.Exit(command.Run("bench", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	update := flags.Bool("update", false, "write the results to "+baseline)
	memory := flags.Bool("memory", false, "run them 2000 times, print no table, and judge those with one client only")
	count := flags.Int("count", 6, "run each benchmark so many times")
	duration := flags.String("benchtime", "0.5s", "run each benchmark for so long, as go test -benchtime")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if *memory {
		return checkMemory(ctx)
	}

	text, err := runSuites(ctx, stderr, suites, "-count", strconv.Itoa(*count), "-benchtime", *duration)
	if err != nil {
		return err
	}
	if *update {
		return os.WriteFile(baseline, []byte(text), 0o644)
	}
	if err := os.WriteFile(results, []byte(text), 0o644); err != nil {
		return err
	}

	table := exec.CommandContext(ctx, "benchstat", "baseline="+baseline, "now="+results)
	table.Stdout = stdout
	table.Stderr = stderr
	now := parse(text)

	return errors.Join(table.Run(), compare(now, everything), beyond(now))
}

func checkMemory(ctx context.Context) error {
	brief := slices.DeleteFunc(slices.Clone(suites), func(s suite) bool { return s.isLong })
	text, err := runSuites(ctx, io.Discard, brief, "-benchtime", "2000x")
	if err != nil {
		return err
	}
	return compare(parse(text), single)
}

// compare compares the results with the results of the baseline for which counts returns true.
func compare(now measured, counts func(name) bool) error {
	text, err := os.ReadFile(baseline)
	if err != nil {
		return err
	}
	if err := worse(parse(string(text)), now, counts); err != nil {
		return fmt.Errorf("worse than the baseline; "+
			"to accept the new values, run: make bench-compare ARGS=-update\n%w", err)
	}
	return nil
}
