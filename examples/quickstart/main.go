// Quickstart runs Runtime Watcher on one machine: two real API servers, the agent and an operator.
// It makes five writes, and prints and checks the effect of each write. The exit code is 0 only if
// each effect is as expected.
//
// Start with operator.go, the side of the operator. runtime.go is the side of the runtime.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
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

// settings are the values of the flags.
type settings struct {
	// serve keeps all programs running after the steps.
	serve bool
	// port is the port of the page with --serve. The following ports serve the metrics of each
	// agent. 0 means free ports.
	port int
	// contract is the contract between agent and control plane.
	contract contract.Version
	// nats sends the events through a NATS server.
	nats bool
}

const usage = `Runs Runtime Watcher on this machine, makes five writes, and checks the effect of each.

usage: make demo [ARGS='--flag ...']   or   go run ./examples/quickstart [--flag ...]

`

// parse returns the settings of flags and environment. Its error is flag.ErrHelp, after it has
// printed the help, or wraps [machine.ErrUsage].
func parse(args []string, getenv func(string) string, stdout io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints the error.
	flags.BoolVar(&s.serve, "serve", false,
		"continue to run afterwards, for kubectl and drills, with a page; Ctrl-C ends it")
	flags.IntVar(&s.port, "port", 7400,
		"with -serve: `port` of the page, the next two of the agents' metrics; 0: free ones")

	name := flags.String("contract", cmp.Or(getenv("CONTROL_PLANE_CONTRACT"), string(contract.V3)),
		fmt.Sprintf("`name` of the wire contract to the control plane, also as CONTROL_PLANE_CONTRACT: %v",
			contract.Versions()))
	flags.Func("transport", "`name`: http (default), or nats: through a NATS server, with contract v3",
		func(name string) error {
			s.nats = name == "nats"
			if !s.nats && name != "http" {
				return fmt.Errorf("%q: want http or nats", name)
			}
			return nil
		})

	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return s, flag.ErrHelp
	}

	if err != nil {
		return s, fmt.Errorf("%w: %w", machine.ErrUsage, err)
	}

	if err := s.complete(*name, flags.Args()); err != nil {
		return s, fmt.Errorf("%w: %w", machine.ErrUsage, err)
	}
	return s, nil
}

// complete sets the contract, and checks the combination of flags and the rest of the arguments.
func (s *settings) complete(contractName string, rest []string) (err error) {
	if len(rest) > 0 {
		return fmt.Errorf("argument %q: want flags only", rest[0])
	}

	s.contract, err = contract.ParseVersion(contractName)
	if err != nil {
		return err
	}
	if s.nats && s.contract != contract.V3 {
		return fmt.Errorf("transport nats with contract %s: want %s", s.contract, contract.V3)
	}
	return nil
}
