package lab

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// Runbook returns the blocks of commands below a heading of the runbooks, down to the next heading.
func Runbook(t testing.TB, heading string) (blocks []string) {
	t.Helper()

	_, section, _ := strings.Cut(string(test.Read(t, "docs/operations/runbooks.md")), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n##")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, block[1])
	}

	if blocks == nil {
		t.Fatalf("the runbooks have no commands below %q", heading)
	}

	return blocks
}

// Shell runs commands of the runbooks in an empty folder, and fails the test if one of them fails.
// The functions take the place of their short commands.
func Shell(t testing.TB, functions, commands string) string {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", functions+commands)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", commands, err, out)
	}

	return string(out)
}

// ShortKubectl returns a short command of the runbooks, such as skr, which is kubectl for a namespace.
func ShortKubectl(t testing.TB, name, kubeconfig, namespace string) string {
	t.Helper()

	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		Missing(t, "needs kubectl, which test/lab/cmd/assets builds: %v", err)
	}
	return name + "() { " + filepath.Join(assets, "kubectl") + " --kubeconfig " + kubeconfig + " -n " + namespace + ` "$@"; }` + "\n"
}
