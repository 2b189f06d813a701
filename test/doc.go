// Package test holds what tests the modules together. It is never released.
package test

import (
	"path/filepath"
	"runtime"
)

// Root returns the root of the repository that this file was compiled in.
func Root() string {
	_, file, _, _ := runtime.Caller(0)

	return filepath.Dir(filepath.Dir(file))
}
