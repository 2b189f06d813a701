// Demo runs the story of a module on one machine. A control plane and two runtimes have real API
// servers, cert-manager, agents and the operator. Demo prints and checks each effect. The exit code
// is 0 only if each effect is the expected one, in time.
//
// Start with story.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"     //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

func main() {
	ctx, stdout, stop := machine.UntilInterrupted(os.Stdout)
	err := run(ctx, os.Args[1:], stdout, os.Stderr)
	stop()
	os.Exit(machine.ExitCode(err))
}

// run is the whole program. Everything that it starts ends before it returns.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	d := &demo{out: stdout}
	flags.IntVar(&d.slack, "slack", 1, "`factor` for the time that each effect may take, for a busy machine")
	flags.BoolVar(&d.faults, "faults", false, "play a story of faults, in which the operator is killed in each line")
	flags.BoolVar(&d.serve, "serve", false, "play no story: print kubeconfigs, and run until Ctrl-C")
	flags.BoolVar(&d.all, "all", false, "play one story after the other, and then do as -serve")

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", machine.ErrUsage, err)
	}

	err = rig.Play(ctx, "lifecycle", d.play)
	if err != nil {
		fmt.Fprintf(stderr, "\ndemo: %v\n", err)
	}
	return err
}
