package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Program is a main package of another module.
type Program struct {
	// Name is that of its file.
	Name string
	// Mod is the path of a module file with its checksums beside it, and Version that of the module of
	// Package there.
	Mod, Version string
	// Package is the main package, or the path of its only file.
	Package string
	LDFlags string
}

// Builder keeps one folder of programs complete.
type Builder struct {
	Dir string
	// Progress gets a line for every step, and one every 15 s. Default: [os.Stderr].
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

// Executable reports whether a path is that of an executable file.
func Executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// build needs the lock, because it owns the unfinished file.
func (b Builder) build(ctx context.Context, p Program) error {
	b.printf("building %s %s from source, once: all takes about %s", p.Name, p.Version, b.Takes)
	start, done := time.Now(), make(chan error, 1)
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
