package apiserver

import (
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// StartT is [Start] for a test: a failure ends the test, and the control plane stops when the test
// and its subtests are over. It may build the binaries first, so a test run that wants to see the
// progress builds them beforehand.
func StartT(t testing.TB, opts Options) *ControlPlane {
	t.Helper()
	return StartAllT(t, opts)[0]
}

// StartAllT is [StartAll] for a test.
func StartAllT(t testing.TB, all ...Options) []*ControlPlane {
	t.Helper()
	// The first call counts. Without any, controller-runtime logs a stack trace.
	log.SetLogger(logr.Discard())
	planes, stop, err := StartAll(t.Context(), all)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return planes
}
