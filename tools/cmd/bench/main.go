// Command bench runs the benchmarks of the paths of an event and compares them with the stored
// baseline. benchstat prints the table. The command fails when a benchmark takes more memory than
// before. Times count with -times only: the machine of the baseline must then be this one.
//
// It runs at the root of the repository, with benchstat in the PATH: make bench-compare.
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

	"github.com/runtime-watcher/runtime-watcher/tools/internal/bench"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// suites are the benchmarks of the baseline. Each allocates nearly the same in each run.
var suites = []bench.Suite{
	{Package: "./core/contract", Pattern: "^BenchmarkBatch$"},
	{Package: "./core/outbox", Pattern: "^BenchmarkAccept$"},
	{Package: "./adapters/admission", Pattern: "^(BenchmarkReview|BenchmarkDryRun)$"},
	{Package: "./adapters/httpmtls", Pattern: "^BenchmarkForward$"},
	{Package: "./adapters/controllerruntime", Pattern: "^BenchmarkEnqueueByRuntime$"},
	{Package: "./listener", Pattern: "^(BenchmarkServeHTTP|BenchmarkServer)$/^(handshake|connection|header)"},
	{Package: "./bench/paths", Pattern: "^BenchmarkV3$"},
}

// results is where the new results are written.
const results = "bin/bench.txt"

func main() { os.Exit(command.Run("bench", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	update := flags.Bool("update", false, "write the results to "+bench.BaselineFile)
	times := flags.Bool("times", false, "also fail when a benchmark became slower")
	count := flags.Int("count", 6, "run each benchmark so many times")
	duration := flags.String("benchtime", "0.5s", "run each benchmark for so long, as go test -benchtime")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := bench.Run(ctx, ".", suites, stderr, "-count", strconv.Itoa(*count), "-benchtime", *duration)
	if err != nil {
		return err
	}
	if *update {
		return os.WriteFile(bench.BaselineFile, []byte(text), 0o644)
	}
	if err := os.WriteFile(results, []byte(text), 0o644); err != nil {
		return err
	}
	return compare(ctx, bench.Parse(text), *times, stdout, stderr)
}

// compare prints the table and the verdict.
func compare(ctx context.Context, now bench.Results, times bool, stdout, stderr io.Writer) error {
	text, err := os.ReadFile(bench.BaselineFile)
	if err != nil {
		return err
	}
	table := exec.CommandContext(ctx, "benchstat", "baseline="+bench.BaselineFile, "now="+results)
	table.Stdout, table.Stderr = stdout, stderr
	if err := table.Run(); err != nil {
		return fmt.Errorf("benchstat: %w", err)
	}
	before := bench.Parse(string(text))
	err = bench.CompareMemory(before, now)
	if times {
		err = errors.Join(err, bench.CompareTimes(before, now))
	}
	if err != nil {
		return fmt.Errorf("worse than the baseline, to agree: make bench-compare ARGS=-update\n%w", err)
	}
	fmt.Fprintln(stdout, "not worse than the baseline")
	return nil
}
