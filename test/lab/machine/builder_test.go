package machine_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newBuilder returns a builder, and a program with a source.
func newBuilder(t *testing.T, source string) (machine.Builder, machine.Program, *bytes.Buffer) {
	t.Helper()

	folder := t.TempDir()
	progress := new(bytes.Buffer)
	for name, text := range map[string]string{"go.mod": "module a\n\ngo 1.26.0\n", "go.sum": "", "main.go": source} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return machine.Builder{Dir: filepath.Join(t.TempDir(), "v1"), Progress: progress, Takes: "five minutes"}, machine.Program{
		Name: "a", Version: "v3.6.0", Mod: filepath.Join(folder, "go.mod"), Package: filepath.Join(folder, "main.go"),
	}, progress
}

func TestABuildIsMadeOnceAndNeverHalf(t *testing.T) {
	b, p, progress := newBuilder(t, "package main\nfunc main() { broken }")
	if err := b.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), "build a v3.6.0") ||
		!strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want the name of the program, and the compiler's output", err)
	}

	if machine.Executable(filepath.Join(b.Dir, p.Name)) {
		t.Error("a build that failed is there")
	}

	good := []byte("package main\nfunc main() {}")
	if err := os.WriteFile(p.Package, good, 0o600); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		if err := b.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}

	if text := progress.String(); !strings.Contains(text, "five minutes") || strings.Count(text, "built a v3.6.0") != 1 {
		t.Errorf("want one line of one build that has ended:\n%s", text)
	}
}

func TestABuildWaitsForTheLockUntilTheContextEnds(t *testing.T) {
	b, p, progress := newBuilder(t, "")
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}

	unlock, err := machine.Lock(t.Context(), filepath.Join(b.Dir, ".lock"), func() { t.Error("waited for a free lock") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		if err := b.Ensure(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline error", err)
		}
		if got := strings.Count(progress.String(), "waiting for another process"); got != 1 {
			t.Errorf("%d reports that it waits, want one:\n%s", got, progress)
		}
	})
}
