// Quickstart runs Runtime Watcher on one machine: two real API servers, the agent and an operator.
// It makes five writes, and prints and checks the effect of each. The exit code is 0 only if each
// effect is the expected one.
//
// Start with operator.go, the side of the operator. runtime.go is the side of the runtime.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"         //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

func main() {
	ctx, stdout, stop := machine.UntilInterrupted(os.Stdout)
	err := run(ctx, os.Args[1:], os.Getenv, stdout, os.Stderr)
	stop()
	os.Exit(machine.ExitCode(err))
}

// run is the whole program. It prints its error to stderr. Everything that it starts ends before it
// returns.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	settings, err := parse(args, getenv, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return err
	}
	d := &demo{settings: settings, report: &report{out: stdout}, started: time.Now()}
	done := context.AfterFunc(ctx, func() { d.report.printf("\nStopping ...\n") })
	defer done()
	err = lab.Play(ctx, "quickstart", d.play)
	if err != nil && !errors.Is(err, machine.ErrInterrupted) {
		err = fmt.Errorf("%s: %w\n  next: %s", d.stage.name, err, d.stage.next)
	}
	if err != nil {
		fmt.Fprintf(stderr, "\nquickstart: %v\n", err)
	}
	return err
}
