// Agent runs in a runtime (SKR) as a webhook. It answers the API server at once, and reports the
// change to the control plane (KCP) afterwards.
//
// Each setting is a flag and an environment variable: agent --help and docs/reference/agent.md list
// them. The exit code is 2 for wrong settings and 1 for any other failure. SIGTERM and SIGINT stop
// the agent gracefully. A second signal ends it at once with exit code 1.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // A reader of the log that is gone costs lines, and not the agent.
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
