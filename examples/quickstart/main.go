// Quickstart runs Runtime Watcher on one machine: two real API servers, the agent and an operator.
// It makes five writes, and prints and checks the effect of each. The exit code is 0 only if each
// effect is the expected one.
//
// Start with operator.go, the side of the operator. runtime.go is the side of the runtime.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A closed terminal or pipe ends it gracefully, as Ctrl-C does.
	ctx, stop := signal.NotifyContext(context.Background(),
		os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(exitCode(err))
}
