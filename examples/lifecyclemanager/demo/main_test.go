package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asProgram makes the test binary the program itself.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestFaults plays the story with all faults, and the operator is killed in each line.
func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-faults", "-slack=20"}, &out, os.Stderr); err != nil {
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
	demo := exec.Command(self, "-slack=20") // The signal ends it.
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
