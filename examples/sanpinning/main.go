// Sanpinning shows in one process, without a cluster, that each runtime can trigger only itself. A
// listener pins certificates to registered domains, and 15 senders try to get an event accepted.
// The program prints each answer, and fails when an answer is not the expected one.
//
// Start with listener.go, which is the whole setup. attempts.go has the senders.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/core"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, verifier())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sanpinning:", err)
		os.Exit(1)
	}
}

// run makes the certificates, starts the listener, and makes all attempts.
func run(ctx context.Context, stdout io.Writer, verify core.Verifier) error {
	pki, err := newPKI()
	if err != nil {
		return err
	}
	attempts, err := pki.attempts()
	if err != nil {
		return err
	}
	scene, err := newScene(ctx, pki, verify, len(attempts))
	if err != nil {
		return err
	}
	return errors.Join(report(ctx, stdout, scene, attempts), scene.stop())
}
