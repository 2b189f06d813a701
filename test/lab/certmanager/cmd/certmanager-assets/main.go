// Command certmanager-assets builds cert-manager's controllers for tests, if they are not there
// yet, and prints the path of the program. Progress goes to standard error.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "certmanager-assets:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout, stderr io.Writer) error {
	program, err := certmanager.Assets(ctx, certmanager.AssetsOptions{Progress: stderr})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, program)
	return err
}
