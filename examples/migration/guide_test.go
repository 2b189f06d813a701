package migration

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// commands runs the shell commands of a section of docs/platforms/migration.md in the control plane.
func (w *world) commands(section string) {
	w.t.Helper()
	commands(w.t, section, w.plane, "")
}

// commands returns what the shell commands of a section print. dir has programs that come first.
func commands(t *testing.T, section string, plane *apiserver.ControlPlane, dir string) string {
	t.Helper()
	_, text, _ := strings.Cut(string(test.Read(t, "docs/platforms/migration.md")), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, _ = strings.Cut(text, "```sh\n")
	script, _, found := strings.Cut(text, "\n```")
	if !found {
		t.Fatalf("docs/platforms/migration.md has no commands in section %q", section)
	}

	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+plane.Kubeconfig, "ASSETS="+assets,
		"PATH="+strings.Join([]string{dir, assets, os.Getenv("PATH")}, ":"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// shows wants a check of docs/platforms/migration.md to print a text.
func shows(w *world, plane *apiserver.ControlPlane, want, command string) {
	w.t.Helper()
	w.eventually("kubectl "+command+" prints "+want, func() bool {
		args := append([]string{"--kubeconfig", plane.Kubeconfig}, strings.Fields(command)...)
		return strings.Contains(rig.Kubectl(w.t, args...), want)
	})
}
