package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// commandDebug is the argument that makes a running agent log at level debug.
const commandDebug = "debug"

// debugTime is the time for which a running agent logs at level debug after a signal.
const debugTime = 10 * time.Minute

const debugUsage = `agent debug makes a running agent log at level debug for 10 minutes, without a restart. It sends the
signal USR1 to the agent, and needs to run as the same user, as in its container.

Usage: agent debug [--pid=1]
`

// sendDebug sends the signal.
func sendDebug(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("agent debug", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { _, _ = io.WriteString(stderr, debugUsage) }
	pid := flags.Int("pid", 1, "process of the agent")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	if err := syscall.Kill(*pid, syscall.SIGUSR1); err != nil {
		err = fmt.Errorf("no signal to process %d: %w", *pid, err)
		_, _ = fmt.Fprintln(stderr, err)
		return err
	}
	return nil
}

// debugOnSignal lowers the level to debug for a time after each signal USR1, until ctx ends.
func debugOnSignal(ctx context.Context, level *slog.LevelVar, log *slog.Logger, lasts time.Duration) {
	usual := level.Level()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	end := time.NewTimer(lasts)
	end.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			level.Set(min(slog.LevelDebug, usual))
			end.Reset(lasts)
			log.InfoContext(ctx, "log level is debug", slog.Duration("for", lasts))
		case <-end.C:
			level.Set(usual)
		}
	}
}
