package program

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// programs returns the first ones of three.
func programs(n int) []Program {
	return []Program{{Name: "etcd", Version: "v3.6.0"}, {Name: "kube-apiserver", Version: "v1.36.0"}, {Name: "kubectl"}}[:n]
}

// newFakeBuilder writes small programs, and counts.
func newFakeBuilder(dir string, calls *atomic.Int32) (Builder, *bytes.Buffer) {
	var progress bytes.Buffer
	return Builder{Dir: dir, Progress: &progress, Takes: "five minutes", compile: func(_ context.Context, p Program, _, out string) error {
		calls.Add(1)
		return os.WriteFile(out, []byte(p.Name), 0o755)
	}}, &progress
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	return names
}

func TestEnsureBuildsOnceAndOnlyWhatIsMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v1")
	var calls atomic.Int32
	b, progress := newFakeBuilder(dir, &calls)
	for range 2 {
		if err := b.Ensure(t.Context(), programs(2)...); err != nil {
			t.Fatal(err)
		}
	}
	if got := calls.Load(); got != 2 {
		t.Errorf("compiled %d times, want 2", got)
	}
	if err := b.Ensure(t.Context(), programs(3)...); err != nil {
		t.Fatal(err)
	}
	if got := calls.Load(); got != 3 {
		t.Errorf("with kubectl compiled %d times, want 3", got)
	}
	if diff := cmp.Diff([]string{".lock", "etcd", "kube-apiserver", "kubectl"}, entries(t, dir)); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"building etcd v3.", "five minutes", "built kube-apiserver v1."} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("progress has no %q:\n%s", want, progress)
		}
	}
}

func TestEnsureWaitsForTheLockUntilTheContextEnds(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(t.Context(), filepath.Join(dir, ".lock"), func() { t.Error("waited for a free lock") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b, progress := newFakeBuilder(dir, new(atomic.Int32))
		if err := b.Ensure(ctx, programs(2)...); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline error", err)
		}
		if got := strings.Count(progress.String(), "waiting for another process"); got != 1 {
			t.Errorf("%d reports that it waits, want one:\n%s", got, progress)
		}
	})
}

func TestHalfFinishedBuildIsNoBuild(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("no space left")
	b, _ := newFakeBuilder(dir, new(atomic.Int32))
	b.compile = func(_ context.Context, _ Program, _, out string) error {
		return errors.Join(os.WriteFile(out, []byte("half"), 0o755), broken)
	}
	err := b.Ensure(t.Context(), programs(2)...)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "build etcd v") {
		t.Errorf("got %v, want %v and the name of the program", err, broken)
	}
	if diff := cmp.Diff([]string{".lock"}, entries(t, dir)); diff != "" {
		t.Error(diff)
	}
	// The files of a killed process do not disturb the next one.
	if err := os.MkdirAll(filepath.Join(dir, ".build", "scratch", "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.compile = func(_ context.Context, _ Program, scratch, out string) error {
		if left := entries(t, scratch); len(left) > 0 {
			t.Errorf("scratch directory holds %v", left)
		}
		return os.WriteFile(out, nil, 0o755)
	}
	if err := b.Ensure(t.Context(), programs(2)...); err != nil {
		t.Fatal(err)
	}
}
