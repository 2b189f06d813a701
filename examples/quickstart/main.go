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
	settings, err := parse(args, getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(stdout, help())
		return err
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return err
	}
	if err = show(ctx, settings, &report{out: stdout}); err != nil {
		fmt.Fprintf(stderr, "\nquickstart: %v\n", err)
	}
	return err
}
