// Agent runs in a runtime (SKR) as a webhook. It answers the API server immediately, and reports
// the change to the control plane (KCP) afterwards.
//
// Each setting is a flag and an environment variable: agent --help and docs/reference/agent.md list
// them. The exit code is 2 for wrong settings and 1 for any other failure. SIGTERM and SIGINT stop
// the agent gracefully. A second signal ends it immediately with exit code 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/watching"
	"github.com/runtime-watcher/runtime-watcher/internal/logwriter"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // If the reader of the log has gone, only lines are lost.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitFailure)
	}()

	os.Exit(exitCode(run(ctx, os.Args[1:], newEnvironment(os.Environ()), os.Stdout, os.Stderr)))
}

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

// run returns after all parts have stopped. The error was already written to stderr.
func run(ctx context.Context, args []string, env environment, stdout, stderr io.Writer) error {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case commandWebhookConfiguration:
			return printWebhookConfiguration(args[1:], stdout, stderr)
		case commandCheck:
			return checkSetUp(ctx, args[1:], env, stdout)
		case commandDebug:
			return sendDebug(args[1:], stderr)
		}

		hint := didYouMean(args[0], []string{commandCheck, commandDebug, commandWebhookConfiguration})
		err := &wrongSettings{mistakes: []string{fmt.Sprintf("%.64q: unknown command%s", args[0], hint)}}
		return errors.Join(err, printTo(stderr, err.Error()+"\n"))
	}

	c, err := readSettings(args, env)
	switch {
	case errors.Is(err, errHelp):
		return printTo(stdout, help())
	case errors.Is(err, errVersion):
		return printTo(stdout, thisBuild().String()+"\n")
	case err != nil:
		return errors.Join(err, printTo(stderr, err.Error()+"\n"))
	default:
		return runAgent(ctx, c, stderr)
	}
}

func runAgent(ctx context.Context, c config, stderr io.Writer) error {
	lines := logwriter.New(stderr)
	logging, stop := context.WithCancel(context.WithoutCancel(ctx))
	var writing sync.WaitGroup
	writing.Go(func() { _ = lines.Start(logging) }) // It returns nil.

	level := &slog.LevelVar{}
	level.Set(c.logLevel)
	log := newLogger(lines, level)

	writing.Go(func() { debugOnSignal(logging, level, log, debugTime) })
	writing.Go(func() { warnOfMemory(logging, log, containerLimit(cgroup()), residentMemory) })

	err := serve(ctx, c, log, lines)
	if err != nil {
		log.ErrorContext(ctx, "agent failed", slog.Any("error", err))
	}

	stop()
	writing.Wait()
	return err
}

func (c *config) newParts(log *slog.Logger) (agent.Parts, []prom.Collector, error) {
	if c.source != sourceInformer {
		return agent.Parts{}, nil, nil
	}

	source, err := watching.New(c.informerSettings(), log)
	if err != nil {
		return agent.Parts{}, nil, err
	}

	return source.Parts(), []prom.Collector{source.Metrics}, nil
}

func serve(ctx context.Context, c config, log *slog.Logger, lines *logwriter.Writer) error {
	limitMemory(c.env.get)
	for _, warning := range c.warnings {
		log.WarnContext(ctx, "suspicious setting", slog.String("warning", warning))
	}

	parts, collectors, err := c.newParts(log)
	if err != nil {
		return err
	}

	stop, err := c.addTransport(&parts)
	if err != nil {
		return err
	}
	defer stop()

	collectors = append(collectors, c.buildInfo(), droppedLines(lines))
	running, err := agent.New(ctx, c.to, parts, c.agentOptions(log, collectors...))
	if err != nil {
		return err
	}

	log.InfoContext(ctx, "agent starts", slog.Any("build", thisBuild()), slog.String("config_hash", c.settingsHash()),
		slog.Any("settings", c.effective))
	return running.Start(ctx)
}

// newLogger logs one JSON object per line. Durations are text such as 1m30s.
func newLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: readable}))
}

// readable replaces a duration, which would be in nanoseconds in JSON.
func readable(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		attr.Value = slog.StringValue(attr.Value.Duration().String())
	}
	return attr
}
