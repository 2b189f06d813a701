// Package informer proves the change source adapters/informer against a real API server: the writes
// that become events, faults of the API server, the reads of an operator, and the memory of the
// source.
package informer

import (
	"os"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }
