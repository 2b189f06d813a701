// Package test contains the tests that need several modules. It is never released.
package test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
)

// Root returns the root of the repository in which this file was compiled.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// Read returns the content of a file, and makes go test notice when the file changes. The path is
// relative to the root of the repository.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(testcache.Path(filepath.Join(Root(), path)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// NoticeSources makes go test repeat the test after a change of a program that the repository has.
// Call it where a test compiles or inspects programs.
func NoticeSources(t testing.TB) {
	t.Helper()
	if err := testcache.NoticeSources(below(
		"adapters", "agent", "cmd", "controlplane", "core", "examples", "go.mod", "internal", "keys", "listener", "test",
	)...); err != nil {
		t.Fatal(err)
	}
}

// NoticeDocuments makes go test repeat the test after a change of a document, a manifest or a chart.
// Call it where a program reads them for the test.
func NoticeDocuments(t testing.TB) {
	t.Helper()
	if err := testcache.NoticeFiles(below("README.md", "SECURITY.md", "docs", "deploy", "controlplane/config")...); err != nil {
		t.Fatal(err)
	}
}

// below returns the paths of folders and files of the repository.
func below(names ...string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = filepath.Join(Root(), name)
	}
	return paths
}
