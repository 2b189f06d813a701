// Command bench compares the benchmarks of the paths of an event with a stored baseline: make
// bench-compare. benchstat prints the table. The verdict is about bytes, allocations and the ratio
// to a bare twin in the same run, because times depend on the machine. With -memory it runs them
// briefly, prints no table, and judges the memory of those with one client only.
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
}

// suite is the benchmarks of a package that match a regular expression of go test -bench.
type suite struct{ pkg, pattern string }

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
	text, err := runSuites(ctx, stderr, "-count", strconv.Itoa(*count), "-benchtime", *duration)
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
	table.Stdout, table.Stderr = stdout, stderr
	return errors.Join(table.Run(), compare(parse(text), everything))
}

func checkMemory(ctx context.Context) error {
	text, err := runSuites(ctx, io.Discard, "-benchtime", "2000x")
	if err != nil {
		return err
	}
	return compare(parse(text), single)
}

// compare compares the results with those of the baseline that count.
func compare(now measured, counts func(name) bool) error {
	text, err := os.ReadFile(baseline)
	if err != nil {
		return err
	}
	if err := worse(parse(string(text)), now, counts); err != nil {
		return fmt.Errorf("worse than the baseline, to agree: make bench-compare ARGS=-update\n%w", err)
	}
	return nil
}
