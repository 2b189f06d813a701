package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/check"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/webhookconfig"
)

// The commands in addition to serving: one checks the set-up, one makes a running agent log at
// level debug, and one prints a webhook configuration.
const (
	commandCheck                = "check"
	commandDebug                = "debug"
	commandWebhookConfiguration = "webhook-configuration"
)

const checkUsage = `agent check tries each part of the set-up of an agent once, and prints one line for each: ok, warn,
FAIL or skip. A failure names the fault, the expected state and an action. It takes the settings of
the agent, changes nothing, and may run beside an agent. It takes at most 40 s.

Usage: agent check [--flag=value ...]

The exit code is 0 if no check failed, 1 if one did, and 2 for wrong settings.

`

func checkSetUp(ctx context.Context, args []string, env environment, stdout io.Writer) error {
	c, err := readSettings(args, env)
	switch {
	case errors.Is(err, errHelp):
		return printTo(stdout, checkUsage+help())
	case errors.Is(err, errVersion):
		return printTo(stdout, thisBuild().String()+"\n")
	case err != nil:
		wrong, _ := errors.AsType[*wrongSettings](err)
		return errors.Join(err, check.Refuse(wrong.mistakes, wrong.warnings, stdout))
	default:
		setup := check.Setup{Options: c.agentOptions(slog.New(slog.DiscardHandler)), To: c.to}
		return check.Run(ctx, setup, c.tryNATS(), c.tryInformer(), c.warnings, stdout)
	}
}

func (c *config) tryInformer() func(context.Context) []error {
	if c.source != sourceInformer {
		return nil
	}
	return func(ctx context.Context) []error {
		source, err := watching.New(c.informerSettings(), slog.New(slog.DiscardHandler))
		if err != nil {
			return []error{err}
		}
		return source.Try(ctx)
	}
}

const debugTime = 10 * time.Minute

const debugUsage = `agent debug makes a running agent log at level debug for 10 minutes, without a restart. It sends the
signal USR1 to the agent, and needs to run as the same user, as in its container.

Usage: agent debug [--pid=1]
`

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

func printWebhookConfiguration(args []string, stdout, stderr io.Writer) error {
	err := webhookconfig.Run(args, os.Stdin, stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return nil
	}

	printed := printTo(stderr, err.Error()+"\n")
	if errors.Is(err, webhookconfig.ErrUsage) {
		err = fmt.Errorf("%w: %w", errSettings, err)
	}

	return errors.Join(err, printed)
}
