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

// SkipShort skips a test under -short, because it starts API servers or other programs, or measures.
func SkipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: left out by -short")
	}
}
