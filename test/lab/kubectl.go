package lab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// Helm runs helm at the root of the repository, and returns its output.
func Helm(t testing.TB, args ...string) (string, error) {
	t.Helper()
	path := filepath.Join(test.Root(), "bin", "tools", runtime.Version(), "helm")
	if _, err := os.Stat(path); err != nil {
		Missing(t, "needs %s, which make test builds", path)
	}
	_ = os.Getenv("RUNTIME_WATCHER_DOCUMENTS") // The cache of go test does not see the files that helm reads.
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = test.Root()
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.Output()
	return string(out) + problem.String(), err
}
