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
	exitInterrupted = 130 // What a shell says of a program that Ctrl-C has ended.
)

// errInterrupted means that somebody ended the program before it was through.
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

// run is the whole program. When it returns, whatever it has started has ended, and stderr has been told of the error.
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
		fmt.Fprintln(stderr, "quickstart: interrupted; everything it had started has ended, and its files are gone")
	case err != nil:
		fmt.Fprintf(stderr, "\nquickstart: %v\n", err)
	}

	return err
}

// show sets the scene, plays the steps, and clears up, whatever happens.
func show(ctx context.Context, settings settings, report *report) (err error) {
	ctx, cancel := withStarter(ctx)
	defer cancel()

	s, err := newScene(settings, report)
	if err != nil {
		return err
	}

	// Whoever ended it is told so, and not of the many things that fail because of it.
	defer func() {
		if ctx.Err() != nil {
			err = s.interrupted()
		}

		err = errors.Join(err, s.clear(err))
	}()

	// What breaks meanwhile, such as the agent, ends everything with its own error.
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	s.fail = fail

	err = s.play(running)
	if running.Err() != nil {
		return context.Cause(running)
	}

	return err
}

// withStarter ends the context when the process that started this one has ended: `go run` does not pass on every signal.
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
