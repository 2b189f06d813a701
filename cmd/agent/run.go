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

// run is the whole program. It returns after ctx has ended and all parts have stopped, or with an
// error that stderr has already. Help and version go to stdout, the log goes to stderr.
func run(ctx context.Context, args []string, env environment, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == commandWebhookConfiguration {
		return printWebhookConfiguration(args[1:], stdout, stderr)
	}

	c, err := readSettings(args, env)

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

	for _, warning := range c.warnings {
		log.WarnContext(ctx, "doubtful setting", slog.String("warning", warning))
	}

	if len(c.clientNames) > 0 { // Until newAgent passes them to httpmtls.WebhookTLSConfig.
		return fmt.Errorf("%w:\n  WEBHOOK_CLIENT_NAMES: not supported by this build", errSettings)
	}

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
