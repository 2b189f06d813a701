// Command verify runs the checks of a review that need no judgement. The module files are tidy and
// agree with go.work. Generated code is fresh. Every module builds and tests alone. No check
// changes the tree. Each failure names the command that repairs it.
//
// It runs at the root of the repository, with the folders of all modules as arguments: make verify.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

func main() { os.Exit(command.Run("verify", run)) }

// check is one condition that must hold. run returns all violations, joined.
type check struct {
	name string
	fix  string
	run  func(context.Context, *repository) error
}

// checks returns all checks, the cheapest first. The last one finds changes that the others made.
func checks() []check {
	return []check{
		{"workspace", "go work use <folder>, or go work edit -dropuse=<folder>", checkWorkspace},
		{"modules", "make tidy, or edit the go.mod named above", checkModules},
		{"exported", "unexport new names, or agree to the number: make count ARGS=-update", checkExported},
		{"nolint", "remove the linter from the directive, or the directive", checkNolint},
		{"sleep", "run the test in the bubble of testing/synctest, or wait for its condition", checkSleep},
		{"format", "make fmt", checkFormat},
		{"tidy", "make tidy", checkTidy},
		{"generated", "make generate, and commit the changed files", checkGenerated},
		{"memory", "allocate less, or agree to it: make bench-compare ARGS=-update", checkMemory},
		{"alone", "GOWORK=off go test ./... in the module named above", checkAlone},
		{"consumer", "make consumer", checkConsumer},
		{"clean", "commit, or ignore, the files listed above", checkClean},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("verify", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "run only these checks, `comma separated`")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: verify [-only name,...] <folder of a module>...")
		for _, c := range checks() {
			fmt.Fprintf(stderr, "  %-10s to fix: %s\n", c.name, c.fix)
		}
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	selected, err := selectChecks(*only)
	if err != nil {
		return err
	}
	repo, err := openRepository(ctx, ".", flags.Args(), stdout)
	if err != nil {
		return err
	}
	repo.mustBeClean = os.Getenv("CI") == "true"
	return runChecks(ctx, selected, repo, stdout)
}

func selectChecks(only string) ([]check, error) {
	all := checks()
	if only == "" {
		return all, nil
	}
	var selected []check
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no check is called %q", name)
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// runChecks runs all checks even if one fails, so that one run reports all failures.
func runChecks(ctx context.Context, selected []check, repo *repository, out io.Writer) error {
	var failed []string
	for _, c := range selected {
		started := time.Now()
		err := c.run(ctx, repo)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		took := time.Since(started).Round(100 * time.Millisecond)
		if err == nil {
			fmt.Fprintf(out, "ok    %-10s %s\n", c.name, took)
			continue
		}
		failed = append(failed, c.name)
		fmt.Fprintf(out, "FAIL  %-10s %s\n%s\n      to fix: %s\n", c.name, took, indent(err.Error()), c.fix)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d checks failed: %s", len(failed), len(selected), strings.Join(failed, ", "))
	}
	return nil
}

func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n      ")
}
