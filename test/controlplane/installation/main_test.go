// Package installation proves controlplane/installation and deploy/ against real API
// servers.
package installation

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func startRuntime(t *testing.T) *apiserver.ControlPlane {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}
	return apiserver.StartT(t, apiserver.Options{})
}
