// Package installation proves controlplane/installation and deploy/ against real API
// servers.
package installation

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

func startRuntime(t *testing.T) *controlplane.ControlPlane {
	t.Helper()

	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}

	return controlplane.StartT(t, controlplane.Options{})
}
