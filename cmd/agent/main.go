// Agent runs in a runtime. The API server asks it about changes; it answers at once, and tells the control plane afterwards.
//
// Every setting is a flag and an environment variable: agent --help lists them. Wrong settings end it with exit code 2, and
// any other failure with 1. SIGTERM or SIGINT stops it gracefully; the second of them at once, with exit code 1.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	ctx, stop := context.WithCancel(context.Background())

	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitFailure)
	}()

	os.Exit(exitCode(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)))
}
