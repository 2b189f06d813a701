package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// compile lays out the module in an empty folder, and builds the program there.
func compile(ctx context.Context, p Program, scratch, out string) error {
	if err := p.Lay(ctx, scratch); err != nil {
		return err
	}
	_, err := Go(ctx, scratch, p.Env, "build", "-trimpath", "-buildvcs=false", "-ldflags", p.LDFlags, "-o", out, p.Package)
	return err
}

// Go runs the go command of the PATH in a folder, and returns its output. It keeps the variables for
// modules and caches, and removes those that would change the result: the workspace, the caller's
// flags, and another target than this machine. env has more variables.
func Go(ctx context.Context, folder string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.Env = append(cmd.Env, env...)
	// Interrupted, the go command ends its compilers; killed, it would leave them running.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, errors.Join(context.Cause(ctx), err), Tail(stderr.String(), 20))
	}
	return string(out), nil
}
