package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSettings):
		return exitUsage
	default:
		return exitFailure
	}
}

// run is the whole program. It returns after ctx has ended and everything has stopped, or with the error that it has told stderr
// of. What was asked for, such as --version, goes to stdout, the log to stderr.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	c, err := readSettings(args, getenv)

	switch {
	case errors.Is(err, errHelp):
		return printTo(stdout, help())
	case errors.Is(err, errVersion):
		return printTo(stdout, thisBuild().String()+"\n")
	case err != nil:
		return errors.Join(err, printTo(stderr, err.Error()+"\n"))
	}

	log := newLogger(stderr, c.logLevel)
	if err = serve(ctx, c, log); err != nil {
		log.ErrorContext(ctx, "agent failed", slog.Any("error", err))
	}

	return err
}

func printTo(w io.Writer, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

func serve(ctx context.Context, c config, log *slog.Logger) error {
	limitMemory(c.getenv)

	a, err := newAgent(ctx, c, log)
	if err != nil {
		return err
	}

	log.InfoContext(ctx, "agent starts", slog.Any("build", thisBuild()), slog.String("config_hash", c.hash()),
		slog.Any("settings", c.effective))

	err = runAll(ctx, a.components)
	log.InfoContext(ctx, "agent stopped", slog.Any("events", a.total()))

	return err
}
