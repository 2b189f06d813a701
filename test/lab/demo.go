package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2" //nolint:depguard // client-go would log to the terminal.
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// Demo is the [testing.TB] of a program that is not a test, so that demos can use the laboratory as
// suites do. A failure also ends its context. Its methods may be called concurrently, but Fatal
// only in the goroutine of [Play] or of a cleanup. All other methods of testing.TB panic.
type Demo struct {
	testing.TB

	// Dir is a folder of this run.
	Dir string
	// Logger is the logger of the libraries and of Logf. It writes to a file.
	Logger *slog.Logger

	ctx     context.Context //nolint:containedctx // As a test has one.
	cancel  context.CancelCauseFunc
	mu      sync.Mutex
	failure error
	ending  bool
	ends    []func()
}

// Play calls play, and then all cleanups in reverse order. It removes the folder of the run, except
// for the logs of a failure, which the error names. A play that does not return because ctx has ended
// is [machine.ErrInterrupted].
func Play(ctx context.Context, name string, play func(*Demo)) error {
	dir, err := os.MkdirTemp("", name+"-") // The path of a socket must be short.
	if err != nil {
		return fmt.Errorf("make a folder for this run: %w; TMPDIR may name another one", err)
	}

	d := &Demo{Dir: dir}
	file, err := d.openLog(name)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer file.Close()

	d.ctx, d.cancel = context.WithCancelCause(ctx)
	d.play(ctx, play)
	if d.failure == nil || errors.Is(d.failure, machine.ErrInterrupted) {
		return errors.Join(d.failure, os.RemoveAll(dir))
	}

	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if path := filepath.Join(dir, entry.Name()); path != d.LogFile("") {
			err = errors.Join(err, os.RemoveAll(path)) // Key material, for example.
		}
	}

	return errors.Join(d.failure, err, errors.New("  logs: "+d.LogFile("")))
}

// openLog sends the logs of libraries to a file.
func (d *Demo) openLog(name string) (*os.File, error) {
	if err := os.Mkdir(d.LogFile(""), 0o700); err != nil {
		return nil, err
	}

	file, err := os.Create(d.LogFile(name + ".log"))
	d.Logger = slog.New(slog.NewTextHandler(file, nil))
	log.SetLogger(logr.FromSlogHandler(d.Logger.Handler()))
	klog.SetSlogLogger(d.Logger)

	return file, err
}

// LogFile returns the path of a log, or of the folder of all logs.
func (d *Demo) LogFile(name string) string { return filepath.Join(d.Dir, "logs", name) }

func (d *Demo) play(ctx context.Context, play func(*Demo)) {
	finished := d.call(func() { play(d) })
	d.mu.Lock()
	// Ctrl-C may end a process that has just begun, too.
	if !finished && ctx.Err() != nil {
		d.failure = machine.ErrInterrupted
	}

	d.ending = true
	d.mu.Unlock()
	d.cancel(nil)

	for end := d.next(); end != nil; end = d.next() {
		d.call(end)
	}
}

// call calls f in a goroutine that Fatal may end, and reports whether f has returned.
func (d *Demo) call(f func()) bool {
	ended := make(chan bool, 1)
	go func() {
		defer close(ended)
		f()
		ended <- true
	}()

	return <-ended
}

// next takes the last cleanup, nil if there is none.
func (d *Demo) next() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if last := len(d.ends) - 1; last >= 0 {
		end, d.ends = d.ends[last], d.ends[:last]
	}
	return end
}

// fail notes a failure, unless it follows from the end of the context.
func (d *Demo) fail(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.ending || d.ctx.Err() == nil {
		failure := errors.New(text)
		d.failure = errors.Join(d.failure, failure)
		d.cancel(failure)
	}
}

// demoOf returns the demo that t is or embeds, nil for a test.
func demoOf(t testing.TB) *Demo { //nolint:thelper // It cannot fail.
	if demo, ok := t.(interface{ self() *Demo }); ok {
		return demo.self()
	}
	return nil
}

func (d *Demo) self() *Demo { return d }

// proceed ends the play if its context has ended.
func (d *Demo) proceed() {
	d.mu.Lock()
	ending := d.ending
	d.mu.Unlock()
	if !ending && d.ctx.Err() != nil {
		runtime.Goexit()
	}
}

// Cleanup implements [testing.TB].
func (d *Demo) Cleanup(end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ends = append(d.ends, end)
}

// Context implements [testing.TB].
func (d *Demo) Context() context.Context { return d.ctx }

// Error implements [testing.TB].
func (d *Demo) Error(args ...any) { d.fail(fmt.Sprint(args...)) }

// Errorf implements [testing.TB].
func (d *Demo) Errorf(format string, args ...any) { d.fail(fmt.Sprintf(format, args...)) }

// Fatal implements [testing.TB].
func (d *Demo) Fatal(args ...any) {
	d.Error(args...)
	runtime.Goexit()
}

// Fatalf implements [testing.TB].
func (d *Demo) Fatalf(format string, args ...any) { d.Fatal(fmt.Sprintf(format, args...)) }

// Failed implements [testing.TB].
func (d *Demo) Failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure != nil
}

// Helper implements [testing.TB].
func (d *Demo) Helper() {}

// Logf implements [testing.TB].
func (d *Demo) Logf(format string, args ...any) {
	d.Logger.Info("demo", "text", fmt.Sprintf(format, args...))
}

// TempDir implements [testing.TB]. The folder is removed with the folder of the run.
func (d *Demo) TempDir() string {
	dir, err := os.MkdirTemp(d.Dir, "tmp-")
	NoError(d, err)
	return dir
}
