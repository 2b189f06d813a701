package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dieWithoutStop() {
		return
	}
	goleak.VerifyTestMain(m)
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
