// Package watchers proves controlplane against real API servers.
package watchers

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// startControlPlane starts an API server that knows Watchers, and skips the test where none may be
// started.
func startControlPlane(t *testing.T, opts apiserver.Options) *apiserver.ControlPlane {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}
	opts.CRDs = append(opts.CRDs, manifests.Watchers(t))
	return apiserver.StartT(t, opts)
}
