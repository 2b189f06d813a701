package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Repository returns the root of the repository, with the sources of all programs.
func Repository() (string, error) {
	_, source, _, _ := runtime.Caller(0) // No path with -trimpath.
	working, _ := os.Getwd()             // On error, only source counts.
	for _, dir := range []string{filepath.Dir(source), working} {
		for ; filepath.IsAbs(dir); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "cmd", "agent", "go.mod")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no source of the agent: run this in a clone of the repository")
}

// Build compiles the program in a folder of the repository into a folder below bin, if it is
// outdated, and returns its path. The caller removes scratch, where interrupted compilers leave
// files.
func Build(ctx context.Context, folder, bin, scratch string) (string, error) {
	_ = os.Getenv("RUNTIME_WATCHER_SOURCES") // So that the cache of go test notices a change of the sources.
	root, err := Repository()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", bin, filepath.Base(folder))
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = filepath.Join(root, filepath.FromSlash(folder))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOTMPDIR="+scratch)
	cmd.SysProcAttr = OwnGroup()
	// The whole group: the go command alone would leave the compilers behind.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", folder, err, bytes.TrimSpace(output))
	}
	return path, nil
}

// Poll waits until a condition holds, and asks it every 20 ms.
func Poll(ctx context.Context, condition func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
