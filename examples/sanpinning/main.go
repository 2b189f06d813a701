// Sanpinning shows in one process, without a cluster, that only a runtime can trigger itself: a listener that pins certificates to
// registered domains, and everybody who tries to get past it. It prints who asked for what and how that was answered, and fails
// when one answer is not as it should be.
//
// Begin with listener.go, which is all of the set-up; attempts.go is who tries.
package main

import (
	"context"
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

// run makes the certificates, starts the listener, and has everybody try.
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

	err = report(ctx, stdout, scene, attempts)

	return joinStopped(err, scene.stop())
}
