package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Kubectl runs kubectl at the root of the repository, and returns its output.
func Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		Missing(t, "needs kubectl, which test/lab/cmd/assets builds: %v", err)
	}
	_ = os.Getenv("RUNTIME_WATCHER_DOCUMENTS") // The cache of go test does not see the files that kubectl reads.
	cmd := exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), args...)
	cmd.Dir = test.Root()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}
