package installation

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// newSecret returns what belongs in the Secret of a runtime, of a CA of its own.
func newSecret(t *testing.T, runtime string) map[string][]byte {
	t.Helper()

	ca, err := testpki.NewCA("ca", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	leaf, err := ca.Client(runtime, testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	files, err := testpki.Files(leaf, ca)
	if err != nil {
		t.Fatal(err)
	}

	return files
}
