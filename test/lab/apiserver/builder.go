package apiserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// compileFunc compiles b into the file out, and may use the empty directory scratch.
type compileFunc func(ctx context.Context, b binary, scratch, out string) error

// builder keeps one directory of binaries complete.
type builder struct {
	dir       string
	progress  io.Writer
	compile   compileFunc
	heartbeat time.Duration
}

// ensure returns when every wanted binary is in b.dir. Only one builder per directory compiles at a
// time, in this and in any other process; the others wait.
func (b *builder) ensure(ctx context.Context, wanted []binary) error {
	if len(missing(b.dir, wanted)) == 0 {
		return nil
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(b.dir, ".lock"), func() {
		b.printf("waiting for another process that is building the control plane")
	})
	if err != nil {
		return err
	}
	defer unlock()
	for _, bin := range missing(b.dir, wanted) {
		if err := b.build(ctx, bin); err != nil {
			return err
		}
	}
	return nil
}

// build needs the lock, because it owns the directory for unfinished work. It removes the files of
// a killed process there.
func (b *builder) build(ctx context.Context, bin binary) (err error) {
	version, err := bin.version()
	if err != nil {
		return err
	}
	tmp := filepath.Join(b.dir, ".build")
	scratch, out := filepath.Join(tmp, "scratch"), filepath.Join(tmp, bin.name)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	b.printf("building %s %s from source, once: all of the control plane takes about five minutes", bin.name, version)
	start := time.Now()
	stop := b.beat(start, bin.name)
	err = b.compile(ctx, bin, scratch, out)
	stop()
	if err != nil {
		return fmt.Errorf("build %s %s: %w", bin.name, version, err)
	}
	// Only a rename makes it visible: a reader finds all of it.
	if err := os.Rename(out, filepath.Join(b.dir, bin.name)); err != nil {
		return err
	}
	b.printf("built %s %s in %s", bin.name, version, seconds(start))
	return nil
}

// beat prints a line from time to time until the returned function is called, which waits for its
// goroutine.
func (b *builder) beat(start time.Time, name string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(b.heartbeat)
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

func (b *builder) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "controlplane: "+format+"\n", args...)
}
