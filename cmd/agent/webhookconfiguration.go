package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/webhookconfig"
)

// commandWebhookConfiguration is the argument that prints a webhook configuration instead of
// serving.
const commandWebhookConfiguration = "webhook-configuration"

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
