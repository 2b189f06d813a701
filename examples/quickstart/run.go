package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // As in a shell: 128 + SIGINT.
)

// errInterrupted means that a signal ended the program before its last step.
var errInterrupted = errors.New("interrupted")

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	default:
		return exitFailure
	}
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

	err = show(ctx, settings, &report{out: stdout})

	switch {
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(stderr, "quickstart: interrupted; all its processes have ended, and its files are removed")
	case err != nil:
		fmt.Fprintf(stderr, "\nquickstart: %v\n", err)
	}

	return err
}

// show runs the demo and removes its processes and files.
func show(ctx context.Context, settings settings, report *report) (err error) {
	ctx, cancel := withStarter(ctx)
	defer cancel()

	d, err := newDemo(settings, report)
	if err != nil {
		return err
	}

	// After a signal, errInterrupted replaces the errors that the signal causes.
	defer func() {
		if ctx.Err() != nil {
			err = d.interrupted()
		}

		err = errors.Join(err, d.clear(err))
	}()

	// A failure meanwhile, such as the end of the agent, ends the demo with its own error.
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	d.fail = fail

	err = d.play(running)
	if running.Err() != nil {
		return context.Cause(running)
	}

	return err
}

// withStarter ends the context at the end of the parent process: `go run` does not pass on every
// signal.
func withStarter(parent context.Context) (context.Context, context.CancelFunc) {
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(parent)
	watching.Go(func() {
		defer cancel()
		awaitOrphaned(ctx)
	})
	return ctx, func() {
		cancel()
		watching.Wait()
	}
}

func awaitOrphaned(ctx context.Context) {
	const often = 500 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for starter := os.Getppid(); os.Getppid() == starter; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
