// Package installation proves controlplane/installation and deploy/ against real API
// servers.
package installation

import (
	"os"
	"testing"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

func TestMain(m *testing.M) { os.Exit(rig.RunTests(m)) }
