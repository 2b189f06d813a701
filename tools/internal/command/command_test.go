package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

func TestOutputKeepsStandardErrorForTheError(t *testing.T) {
	out, err := command.Output(exec.Command("sh", "-c", "echo out; echo err >&2"))
	if out != "out\n" || err != nil {
		t.Errorf("%q and %v, want the standard output", out, err)
	}

	_, err = command.Output(exec.Command("sh", "-c", "echo out; echo err >&2; exit 3"))
	if err == nil || !strings.HasSuffix(err.Error(), "exit status 3\nout\n\nerr") {
		t.Errorf("%v, want an error with all output", err)
	}
}

func TestFilesAreThoseOfTheWorkingTree(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"tracked.go", "deleted.go", "new.go", "new.md", "ignored.go"} {
		check(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}

	check(t, os.WriteFile(filepath.Join(root, ".gitignore"), []byte("ignored.go\n"), 0o600))
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "tracked.go", "deleted.go"}} {
		_, err := command.Output(exec.Command("git", append([]string{"-C", root}, args...)...))
		check(t, err)
	}

	check(t, os.Remove(filepath.Join(root, "deleted.go")))
	files, err := command.Files(t.Context(), root, "*.go")
	slices.Sort(files)
	if want := []string{"new.go", "tracked.go"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("%v and %v, want %v", files, err, want)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
