// Quickstart shows Runtime Watcher at work on one machine: a real control plane and a real runtime, the agent, an operator that
// listens, and what becomes of five writes. It checks what it shows, and its exit code tells.
//
// Begin with operator.go, which is what an operator needs; runtime.go is the other end.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A closed terminal or pipe ends it like Ctrl-C does: in good order.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)

	stop()
	os.Exit(exitCode(err))
}
