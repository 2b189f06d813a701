// Package test has the tests of all modules together. It is never released.
package test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Root returns the root of the repository that this file was compiled in.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(file))
}

// Read returns the content of a file. The path is relative to the root of the repository.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
