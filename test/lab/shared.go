package lab

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var shared struct {
	sync.Mutex

	plane *apiserver.ControlPlane
}

// SharedAPIServer returns the API server that all tests of a process share. The first call starts
// it with opts, later calls ignore them. A test must remove its objects, or give them names of
// their own. TestMain must call [StopSharedAPIServer].
func SharedAPIServer(t testing.TB, opts apiserver.Options) *apiserver.ControlPlane {
	t.Helper()
	SkipShort(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil {
		log.SetLogger(logr.Discard()) // The first call counts. Without any, controller-runtime logs a stack trace.
		plane, err := apiserver.Start(context.WithoutCancel(t.Context()), opts)
		NoError(t, err)
		shared.plane = plane
	}
	return shared.plane
}

// StopSharedAPIServer stops the API server of [SharedAPIServer], if there is one.
func StopSharedAPIServer() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil {
		return nil
	}
	defer func() { shared.plane = nil }()
	return shared.plane.Stop()
}

// RunTests runs the tests of a package, stops the shared API server, and returns the exit code.
func RunTests(m *testing.M) int {
	code := m.Run()
	if err := StopSharedAPIServer(); err != nil && code == 0 {
		return 1
	}
	return code
}
