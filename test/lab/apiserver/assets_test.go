package apiserver

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

func TestMain(m *testing.M) {
	if dieWithoutStop() {
		return
	}
	goleak.VerifyTestMain(m)
}

// fakeCompile writes a small program, and counts.
func fakeCompile(calls *atomic.Int32) compileFunc {
	return func(_ context.Context, b binary, _, out string) error {
		calls.Add(1)
		return os.WriteFile(out, []byte(b.name), 0o755)
	}
}

func newFakeBuilder(dir string, compile compileFunc) (*builder, *bytes.Buffer) {
	var progress bytes.Buffer
	return &builder{dir: dir, progress: &progress, compile: compile, heartbeat: 15 * time.Second}, &progress
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
	b, progress := newFakeBuilder(dir, fakeCompile(&calls))
	for range 2 {
		if err := b.ensure(t.Context(), binaries(false)); err != nil {
			t.Fatal(err)
		}
	}
	if got := calls.Load(); got != 2 {
		t.Errorf("compiled %d times, want 2", got)
	}
	if err := b.ensure(t.Context(), binaries(true)); err != nil {
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
	unlock, err := lock(t.Context(), filepath.Join(dir, ".lock"), func() { t.Error("waited for a free lock") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b, progress := newFakeBuilder(dir, fakeCompile(new(atomic.Int32)))
		if err := b.ensure(ctx, binaries(false)); !errors.Is(err, context.DeadlineExceeded) {
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
	b, _ := newFakeBuilder(dir, func(_ context.Context, _ binary, _, out string) error {
		return errors.Join(os.WriteFile(out, []byte("half"), 0o755), broken)
	})
	err := b.ensure(t.Context(), binaries(false))
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
	b.compile = func(_ context.Context, _ binary, scratch, out string) error {
		if left := entries(t, scratch); len(left) > 0 {
			t.Errorf("scratch directory holds %v", left)
		}
		return os.WriteFile(out, nil, 0o755)
	}
	if err := b.ensure(t.Context(), binaries(false)); err != nil {
		t.Fatal(err)
	}
}

func TestAssetsGiven(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(AssetsEnv, dir)
	executable(t, filepath.Join(dir, "etcd"), "")
	_, err := Assets(t.Context(), AssetsOptions{})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "file kube-apiserver") {
		t.Errorf("got %v, want an error that names the directory and kube-apiserver", err)
	}
	executable(t, filepath.Join(dir, "kube-apiserver"), "")
	got, err := Assets(t.Context(), AssetsOptions{})
	if err != nil || got != dir {
		t.Errorf("got %q, %v, want %q", got, err, dir)
	}
}

func executable(t *testing.T, path, script string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}
