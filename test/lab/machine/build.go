package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
// outdated, and returns its path. Only one process compiles it; others wait. The caller removes
// scratch, where interrupted compilers leave files.
func Build(ctx context.Context, folder, bin, scratch string) (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}

	path := filepath.Join(root, "bin", bin, filepath.Base(folder))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}

	// The go command writes a program anew only if that is out of date. Two at a time would both write it, the second one
	// while the first program runs.
	unlock, err := Lock(ctx, path+".lock", func() {})
	if err != nil {
		return "", err
	}
	defer unlock()

	env := []string{"CGO_ENABLED=0", "GOTMPDIR=" + scratch}
	if _, err := Go(ctx, filepath.Join(root, filepath.FromSlash(folder)), env, "build", "-buildvcs=false", "-o", path, "."); err != nil {
		return "", fmt.Errorf("build %s: %w", folder, err)
	}

	return path, nil
}

// Go runs the go command of the PATH in a folder, without the workspace, and returns its output. env
// has more variables. When ctx ends, the compilers end, too, and the error is the cause.
func Go(ctx context.Context, folder string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = folder, append(append(os.Environ(), "GOWORK=off"), env...)
	cmd.SysProcAttr = OwnGroup()
	// The whole group: the go command alone would leave the compilers behind.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()

	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, Tail(stderr.String(), 20))
	}

	return strings.TrimSpace(string(out)), nil
}

// Module downloads a module, and returns its folder. Without a version in its name, flags or the module
// of the folder name one.
func Module(ctx context.Context, folder, module string, flags ...string) (dir string, err error) {
	args := slices.Concat([]string{"mod", "download", "-json"}, flags, []string{module})
	out, err := Go(ctx, folder, nil, args...)
	var found struct {
		Dir string `json:"Dir"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &found)
	}

	return found.Dir, err
}

// Tail returns the last lines of text.
func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// TailOf returns the last lines of a file, or why there are none.
func TailOf(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return Tail(string(text), lines)
}

// Poll waits until a condition holds. It checks less often as time goes by: after 5 % of the time
// so far, between 10 and 200 ms.
func Poll(ctx context.Context, condition func() bool) error {
	const least, most = 10 * time.Millisecond, 200 * time.Millisecond
	for began := time.Now(); !condition(); {
		select {
		case <-time.After(max(least, min(time.Since(began)/20, most))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Lock takes the exclusive lock on the file at path, which it creates, and calls waiting once if it
// has to wait. The system frees the lock when the process ends, so nothing has to be cleaned up by
// hand. If ctx ends first, Lock returns the error of ctx.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}

	for reported := false; ; reported = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}

		if !reported {
			waiting()
		}

		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for the lock on %s: %w", path, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Program is a main package of another module.
type Program struct {
	// Name is the name of its file.
	Name string
	// Mod is the path of a module file, with its checksums in the same folder. Version is the
	// version of Package's module in that file.
	Mod, Version string
	// Package is the main package, or the path of its only file.
	Package string
	LDFlags string
}

// Builder keeps one folder of programs complete.
type Builder struct {
	Dir string
	// Progress gets a line for every step, and a line every 15 s. Default: [os.Stderr].
	Progress io.Writer
	// Takes is the time of all builds on two cores, for a line of progress.
	Takes string
}

// Ensure returns when every program is in the folder. Only one builder per folder compiles at a time, in this
// and in any other process; the others wait. It ends with ctx.
func (b Builder) Ensure(ctx context.Context, programs ...Program) error {
	if b.Progress == nil {
		b.Progress = os.Stderr
	}

	missing := func(p Program) bool { return !Executable(filepath.Join(b.Dir, p.Name)) }
	if !slices.ContainsFunc(programs, missing) {
		return nil
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return err
	}

	unlock, err := Lock(ctx, filepath.Join(b.Dir, ".lock"), func() {
		b.printf("waiting for another process that is building the same")
	})
	if err != nil {
		return err
	}
	defer unlock()

	for _, p := range programs {
		if !missing(p) {
			continue
		}
		if err := b.build(ctx, p); err != nil {
			return fmt.Errorf("build %s %s: %w", p.Name, p.Version, err)
		}
	}

	return nil
}

// Executable reports whether the file at path is executable.
func Executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// build needs the lock, because it owns the unfinished file.
func (b Builder) build(ctx context.Context, p Program) error {
	b.printf("building %s %s from source, once: all takes about %s", p.Name, p.Version, b.Takes)
	start := time.Now()
	done := make(chan error, 1)
	since := func() time.Duration { return time.Since(start).Round(time.Second) }
	unfinished := filepath.Join(b.Dir, "."+p.Name)
	go func() { done <- p.compile(ctx, unfinished) }()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()

	for {
		select {
		case <-tick.C:
			b.printf("still building %s, %s so far", p.Name, since())
		case err := <-done:
			if err == nil { // Only a rename makes it visible: a reader finds all of it.
				err = os.Rename(unfinished, filepath.Join(b.Dir, p.Name))
			}
			if err == nil {
				b.printf("built %s %s in %s", p.Name, p.Version, since())
			}
			return err
		}
	}
}

// compile leaves the module file as it is, and ignores the variables that would change the program: the
// caller's flags, and another target than this machine.
func (p Program) compile(ctx context.Context, out string) error {
	env := []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH}
	_, err := Go(ctx, filepath.Dir(p.Mod), env, "build", "-modfile="+p.Mod, "-trimpath", "-buildvcs=false",
		"-ldflags="+p.LDFlags, "-o", out, p.Package)
	return err
}

func (b Builder) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.Progress, filepath.Base(filepath.Dir(b.Dir))+": "+format+"\n", args...)
}

// Required returns the version of a module that a module file requires.
func Required(file, module string) (string, error) {
	text, err := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) >= 2 && fields[0] == module && strings.Count(fields[1], ".") >= 2 {
			return fields[1], nil
		}
	}
	return "", errors.Join(err, fmt.Errorf("no line %q in %s", "require "+module+" vMAJOR.MINOR.PATCH", file))
}
