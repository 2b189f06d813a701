// Quickstart runs Runtime Watcher on one machine: two real API servers, the agent and an operator.
// It makes five writes, and prints and checks the effect of each. The exit code is 0 only if each
// effect is the expected one.
//
// Start with operator.go, the side of the operator. runtime.go is the side of the runtime.
package main

import (
	"os"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

func main() {
	ctx, stdout, stop := machine.UntilInterrupted(os.Stdout)
	err := run(ctx, os.Args[1:], os.Getenv, stdout, os.Stderr)
	stop()
	os.Exit(exitCode(err))
}
