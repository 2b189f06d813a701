package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// asProgram makes the test binary the program itself.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// busy gives each effect two minutes. These tests share the machine with others, so they judge what
// happens, and not when.
const busy = "-slack=120"

// TestStory plays the story to its end.
func TestStory(t *testing.T) { play(t, busy) }

// TestFaults plays the story with all faults, and the operator is killed in each line.
func TestFaults(t *testing.T) { play(t, busy, "-faults") }

func play(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	var out bytes.Buffer
	if err := run(t.Context(), args, &out, os.Stderr); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("\n%s", &out)
}

// TestInterrupt ends the story in the middle, as Ctrl-C does. Nothing may be left.
func TestInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	demo := exec.Command(self, busy) // The signal ends it.
	demo.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+dir)
	demo.Stderr = os.Stderr
	out, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, out, "a user edits its Deployment")
	if len(processes(t, dir)) < 10 {
		t.Errorf("processes %q, want all of the demo: this test could not fail", processes(t, dir))
	}
	if err := demo.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out) // It ends with the process.
	if err, ok := errors.AsType[*exec.ExitError](demo.Wait()); !ok || err.ExitCode() != 130 {
		t.Errorf("it ends with %v, want exit code 130", err)
	}
	if left := processes(t, dir); len(left) > 0 {
		t.Errorf("processes %q are left", left)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files %v are left: %v", left, err)
	}
}

// TestGuide runs each command of the guide, in its order, while the demo serves.
func TestGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	guide, err := os.ReadFile("../GUIDE.md")
	if err != nil {
		t.Fatal(err)
	}
	assets, err := apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	out, printed := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-serve", busy}, printed, os.Stderr)
		_ = printed.Close()
	}()
	env := append(os.Environ(), "PATH="+assets+":"+os.Getenv("PATH"))
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "GUIDE.md") {
		if variable, ok := strings.CutPrefix(lines.Text(), "  export "); ok {
			env = append(env, variable)
		}
	}
	blocks := strings.Split(string(guide), "```sh\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		shell := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", block)
		shell.Env, shell.Dir = env, "../../.."
		if said, err := shell.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, said)
			break
		}
	}
	if len(blocks) < 5 {
		t.Errorf("the guide has %d blocks of commands", len(blocks))
	}
	stop()
	_, _ = io.Copy(io.Discard, out) // It ends with the demo.
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReadme compares the story with the output in the README.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range new(demo).story() {
		if text := fmt.Sprintf(happensFormat+effectFormat, l.happens, l.effect, ""); !bytes.Contains(readme, []byte(strings.TrimRight(text, " \n"))) {
			t.Errorf("no such line in the README: %s", text)
		}
	}
}

// awaitLine reads until a line has a text.
func awaitLine(t *testing.T, out io.Reader, text string) {
	t.Helper()
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("no line with %q:\n%s", text, all.String())
}

// processes returns the names of all processes that know a directory, by an argument or a variable.
func processes(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(all) == 0 {
		t.Skip("this system has no /proc")
	}
	for _, process := range all {
		args, _ := os.ReadFile(filepath.Join(process, "cmdline")) // It may have ended.
		env, _ := os.ReadFile(filepath.Join(process, "environ"))
		if bytes.Contains(args, []byte(dir)) || bytes.Contains(env, []byte(dir)) {
			name, _, _ := bytes.Cut(args, []byte{0})
			names = append(names, filepath.Base(string(name)))
		}
	}
	return names
}
