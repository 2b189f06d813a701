package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// compile runs the Go toolchain of the PATH in a module made of the files in build/.
func compile(ctx context.Context, b binary, scratch, out string) error {
	for _, ext := range []string{"mod", "sum"} {
		content, err := buildFiles.ReadFile("build/" + b.files + "." + ext)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(scratch, "go."+ext), content, 0o644); err != nil {
			return err
		}
	}
	version, err := b.version()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", b.ldflags(version), "-o",
		out, b.pkg)
	cmd.Dir = scratch
	cmd.Env = compileEnv(os.Environ())
	// Interrupted, the go command ends its compilers; killed, it would leave them running.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	output, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%s: %w\n%s", cmd, err, tail(string(output), 20))
	}
	return nil
}

// compileEnv keeps the variables for modules and caches. It removes those that would change the
// result: the workspace, the caller's flags, and another target than this machine. Go decides about
// CGO, so that a machine without a C compiler needs none.
func compileEnv(environ []string) []string {
	return append(environ, "GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
