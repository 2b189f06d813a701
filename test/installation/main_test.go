// Package installation proves adapters/controlplane/installation and deploy/ against real API servers.
package installation

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // Or controller-runtime complains, with a stack trace.
	os.Exit(m.Run())
}

func startRuntime(t *testing.T) *controlplane.ControlPlane {
	t.Helper()

	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	return controlplane.StartT(t, controlplane.Options{})
}
