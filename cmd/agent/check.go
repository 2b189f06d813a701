package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/check"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
)

// commandCheck is the argument that checks the set-up instead of serving.
const commandCheck = "check"

const checkUsage = `agent check tries each part of the set-up of an agent once, and prints one line for each: ok, warn,
FAIL or skip. A failure names the fault, the expected state and an action. It takes the settings of
the agent, changes nothing, and may run beside an agent. It takes at most 40 s.

Usage: agent check [--flag=value ...]

The exit code is 0 if no check failed, 1 if one did, and 2 for wrong settings.

`

// checkSetUp prints the results to stdout.
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
		return check.Run(ctx, c.options(slog.New(slog.DiscardHandler)), c.tryNATS(), c.tryInformer(), c.warnings, stdout)
	}
}

// tryInformer returns nil without an informer.
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
