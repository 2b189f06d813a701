package migration

import (
	"os"
	"os/exec"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// commands runs the shell commands of a section of docs/platforms/migration.md in the control plane.
func (w *world) commands(section string) {
	w.t.Helper()
	_, text, _ := strings.Cut(string(test.Read(w.t, "docs/platforms/migration.md")), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, _ = strings.Cut(text, "```sh\n")
	script, _, found := strings.Cut(text, "\n```")
	if !found {
		w.t.Fatalf("docs/platforms/migration.md has no commands in section %q", section)
	}

	assets, err := apiserver.Assets(w.t.Context(), apiserver.AssetsOptions{Kubectl: true})
	w.must(err)

	cmd := exec.CommandContext(w.t.Context(), "sh", "-eu", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.plane.Kubeconfig, "PATH="+assets+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// shows wants a check of docs/platforms/migration.md to print a text.
func shows(w *world, plane *apiserver.ControlPlane, want, command string) {
	w.t.Helper()
	w.eventually("kubectl "+command+" prints "+want, func() bool {
		args := append([]string{"--kubeconfig", plane.Kubeconfig}, strings.Fields(command)...)
		return strings.Contains(rig.Kubectl(w.t, args...), want)
	})
}
