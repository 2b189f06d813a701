package lab

import (
	"os"
	"testing"
)

// Missing ends a test on a machine that lacks a program or a right: it skips the test. It fails the
// test under CI=true, so that CI cannot skip it. The text names the Debian package.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
