package migration

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
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

// kubectl runs a command of docs/platforms/migration.md at the root of the repository.
func (w *world) kubectl(plane *apiserver.ControlPlane, command string) string {
	w.t.Helper()
	w.ran = append(w.ran, "kubectl "+command)
	command = strings.ReplaceAll(command, " -k ", " -k "+test.Root()+"/")
	return rig.Kubectl(w.t, append([]string{"--kubeconfig", plane.Kubeconfig}, strings.Fields(command)...)...)
}

// shows wants a check of docs/platforms/migration.md to print a text.
func shows(w *world, plane *apiserver.ControlPlane, want, command string) {
	w.t.Helper()
	w.eventually("kubectl "+command+" prints "+want, func() bool { return strings.Contains(w.kubectl(plane, command), want) })
}

// allCommandsRan wants each command in the text of docs/platforms/migration.md to have been run. A node of this
// test has no logs that kubectl can read.
func (w *world) allCommandsRan() {
	w.t.Helper()
	found := regexp.MustCompile("`(kubectl [^`]*)`").FindAllSubmatch(test.Read(w.t, "docs/platforms/migration.md"), -1)
	for _, command := range found {
		if text := string(command[1]); !slices.Contains(w.ran, text) && !strings.Contains(text, " logs ") {
			w.t.Errorf("docs/platforms/migration.md has a command that was not run: %s", text)
		}
	}
	if len(found) < 5 {
		w.t.Errorf("%d commands found in docs/platforms/migration.md, want 5 or more", len(found))
	}
}
