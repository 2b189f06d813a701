package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestRunPrintsTheDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(apiserver.AssetsEnv, dir)
	var stdout, stderr strings.Builder
	if err := run(t.Context(), nil, &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != dir+"\n" || stderr.String() != "" {
		t.Errorf("got %q and %q, want only the directory %q", &stdout, &stderr, dir)
	}
	if err := run(t.Context(), []string{"-kubectl"}, &stdout, &stderr); err == nil ||
		!strings.Contains(err.Error(), "kubectl") {
		t.Errorf("without kubectl: got %v", err)
	}
	if err := run(t.Context(), []string{"etcd"}, &stdout, &stderr); err == nil {
		t.Error("an argument is no error")
	}
}
