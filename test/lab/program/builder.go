// Package program builds programs of others from their Go modules, once, for tests and examples.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Program is a program, and its sources.
type Program struct {
	// Name is that of its file.
	Name, Version string
	// Package is the main package in the module that Lay makes in an empty folder.
	Package string
	Lay     func(ctx context.Context, folder string) error
	LDFlags string
	// Env has more variables for the go command. Default: none.
	Env []string
}

// Builder keeps one folder of programs complete.
type Builder struct {
	Dir string
	// Progress gets a line for every step, and one every 15 s. Default: [os.Stderr].
	Progress io.Writer
	// Takes is the time of all builds on two cores, for a line of progress.
	Takes string

	// compile replaces the go command in tests.
	compile func(ctx context.Context, p Program, scratch, out string) error
}

// Ensure returns when every program is in the folder. Only one builder per folder compiles at a time, in this
// and in any other process; the others wait. It ends with ctx.
func (b Builder) Ensure(ctx context.Context, programs ...Program) error {
	if b.Progress == nil {
		b.Progress = os.Stderr
	}
	if b.compile == nil {
		b.compile = compile
	}
	if len(Missing(b.Dir, programs...)) == 0 {
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
	for _, p := range Missing(b.Dir, programs...) {
		if err := b.build(ctx, p); err != nil {
			return fmt.Errorf("build %s %s: %w", p.Name, p.Version, err)
		}
	}
	return nil
}

// Missing returns those programs that are not executable files in a folder.
func Missing(dir string, programs ...Program) (absent []Program) {
	for _, p := range programs {
		info, err := os.Stat(filepath.Join(dir, p.Name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			absent = append(absent, p)
		}
	}
	return absent
}

// build needs the lock, because it owns the folder for unfinished work. It removes the files of a
// killed process there.
func (b Builder) build(ctx context.Context, p Program) error {
	tmp := filepath.Join(b.Dir, ".build")
	scratch, out := filepath.Join(tmp, "scratch"), filepath.Join(tmp, p.Name)
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(scratch, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // The next build removes the rest after a failure.
	b.printf("building %s %s from source, once: all takes about %s", p.Name, p.Version, b.Takes)
	start := time.Now()
	stop := b.beat(start, p.Name)
	err := b.compile(ctx, p, scratch, out)
	stop()
	if err != nil {
		return err
	}
	// Only a rename makes it visible: a reader finds all of it.
	if err := os.Rename(out, filepath.Join(b.Dir, p.Name)); err != nil {
		return err
	}
	b.printf("built %s %s in %s", p.Name, p.Version, seconds(start))
	return nil
}

// beat prints a line from time to time until the returned function is called, which waits for its
// goroutine.
func (b Builder) beat(start time.Time, name string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(15 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				b.printf("still building %s, %s so far", name, seconds(start))
			}
		}
	}()
	return func() { close(quit); <-done }
}

func seconds(start time.Time) string {
	return time.Since(start).Round(time.Second).String()
}

func (b Builder) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.Progress, filepath.Base(filepath.Dir(b.Dir))+": "+format+"\n", args...)
}

// Required returns the version of a module that a go.mod file requires.
func Required(mod, module string) (string, error) {
	for line := range strings.Lines(mod) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) >= 2 && fields[0] == module && strings.Count(fields[1], ".") >= 2 {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("no line %q in the module file", "require "+module+" vMAJOR.MINOR.PATCH")
}

// Tail returns the last lines of a text.
func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
