// Package subresources proves against a real API server which writes of which resources and
// subresources become events, and how many of them leave the API server.
package subresources

import (
	"os"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
