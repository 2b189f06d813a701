package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
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

// TestInterrupt wants the exit code of a shell after Ctrl-C. TestGuide interrupts the demo.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, nil, io.Discard, io.Discard); machine.ExitCode(err) != 130 {
		t.Errorf("%v, exit code %d, want 130", err, machine.ExitCode(err))
	}
}

// TestStory plays the story to its end, and then that of the faults, in which the operator is killed
// in each line. While the demo serves, it runs each command of the guide, in its order. Then Ctrl-C
// ends the demo, and nothing may be left.
func TestStory(t *testing.T) {
	if testing.Short() {
		t.Skip("needs real API servers, which -short leaves out")
	}
	assets := rig.Must(apiserver.Assets(t.Context(), apiserver.AssetsOptions{Kubectl: true}))
	self := rig.Must(os.Executable())
	dir := t.TempDir()
	demo := exec.Command(self, "-all", busy) // The signal ends it.
	demo.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+dir)
	demo.Stderr = os.Stderr
	demo.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = demo.Process.Kill() }) // It has ended, unless the test fails.
	env := append(os.Environ(), "PATH="+assets+":"+os.Getenv("PATH"))
	serves := false
	for lines := bufio.NewScanner(out); !serves && lines.Scan(); {
		t.Log(lines.Text())
		if variable, ok := strings.CutPrefix(lines.Text(), "  export "); ok {
			env = append(env, variable)
		}
		serves = strings.Contains(lines.Text(), "GUIDE.md")
	}
	if !serves {
		t.Fatalf("the demo ends before it serves: %v", demo.Wait())
	}
	t.Run("guide", func(t *testing.T) { follow(t, env) })
	if all := rig.Session(t, demo.Process.Pid); len(all) < 10 {
		t.Errorf("processes %v, want all of the demo: this test could not fail", all)
	}
	rig.NoError(t, demo.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, out) // It ends with the process.
	if err := demo.Wait(); err != nil {
		t.Error(err)
	}
	if left := rig.Session(t, demo.Process.Pid); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files %v are left: %v", left, err)
	}
}

// limits are those of the guide, in seconds.
var limits = regexp.MustCompile(`(timeout[= ])\d+`)

// follow runs each command of the guide.
func follow(t *testing.T, env []string) {
	t.Helper()
	guide := rig.Must(os.ReadFile("../GUIDE.md"))
	blocks := strings.Split(string(guide), "```sh\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		block = limits.ReplaceAllString(block, "${1}900") // A busy machine takes longer.
		shell := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", block)
		shell.Env = env
		shell.Dir = "../../.."
		if said, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, said)
		}
	}
	if len(blocks) < 5 {
		t.Errorf("the guide has %d blocks of commands", len(blocks))
	}
}

// TestReadme compares the story with the output in the README.
func TestReadme(t *testing.T) {
	readme := rig.Must(os.ReadFile("../README.md"))
	for _, l := range new(demo).story() {
		if text := fmt.Sprintf(happensFormat+effectFormat, l.happens, l.effect, ""); !bytes.Contains(readme, []byte(strings.TrimRight(text, " \n"))) {
			t.Errorf("no such line in the README: %s", text)
		}
	}
}
