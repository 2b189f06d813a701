package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// asProgram makes the test binary the program itself, for tests that need a process.
const asProgram = "TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// program is the quickstart as a process. It has its own session, with all its child processes.
type program struct {
	cmd    *exec.Cmd
	stdout *bufio.Scanner
	text   strings.Builder
	stderr bytes.Buffer
	// tmp is its folder for temporary files.
	tmp string
}

func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("starts two API servers, which -short leaves out")
	}
	test.NoticeSources(t) // The program builds the agent.

	self := lab.Must(os.Executable())
	p := &program{cmd: exec.CommandContext(t.Context(), self, args...), tmp: t.TempDir()}
	// On a busy machine, a resend comes only where a commit was late, and not between two steps.
	p.cmd.Env = append(os.Environ(), append(env, asProgram+"=1", "TMPDIR="+p.tmp, "CONTROL_PLANE_CONTRACT=",
		"RESEND_AFTER=60s", "RESEND_RESYNC=60s")...)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout := lab.Must(p.cmd.StdoutPipe())
	p.stdout = bufio.NewScanner(stdout)
	lab.NoError(t, p.cmd.Start())
	return p
}

// readUntil reads lines up to one that contains text; "" reads all.
func (p *program) readUntil(t *testing.T, text string) {
	t.Helper()
	for p.stdout.Scan() {
		p.text.WriteString(p.stdout.Text() + "\n")
		if text != "" && strings.Contains(p.stdout.Text(), text) {
			return
		}
	}
	if text != "" {
		_ = p.cmd.Wait() // It copies stderr until then.
		t.Fatalf("no %q in its output:\n%s%s", text, &p.text, &p.stderr)
	}
}

// end reads the rest and returns the exit code, or -1 after a signal.
func (p *program) end(t *testing.T) int {
	t.Helper()
	p.readUntil(t, "")
	err := p.cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// signal signals the process group, as a terminal does.
func (p *program) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	lab.NoError(t, syscall.Kill(-p.cmd.Process.Pid, signal))
}

// children returns the other running processes of its session.
func (p *program) children(t *testing.T) []lab.Child {
	t.Helper()
	return lab.Session(t, p.cmd.Process.Pid)
}

// checkNothingLeft fails if a child process still runs after grace.
func (p *program) checkNothingLeft(t *testing.T, grace time.Duration) {
	t.Helper()
	lab.Eventually(t, grace, "no process is left", func() bool { return len(p.children(t)) == 0 })
}

// TestDemo runs the demo with a contract that names owners, with v3, and with NATS. For the demo, v2 is like v3 without a
// canary. With --serve, Ctrl-C ends it.
func TestDemo(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"v1": {"--contract=v1", "--serve", "--port=0"}, "v3": nil, "nats": {"--transport=nats", "--serve", "--port=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil, args...)
			if len(args) > 1 {
				p.readUntil(t, serving)
			}
			switch name {
			case "v1":
				p.signal(t, syscall.SIGINT)
				p.checkEnd(t, 0)
			case "nats":
				p.kill(t, "natsserver")
				p.checkFailure(t, "the NATS server ended", "NATS server n0.log")
				find(t, "operator .* takes events from NATS", p.text.String())
			default:
				p.checkEnd(t, 0)
			}
			checkOutput(t, p.text.String())
			if name == "v3" {
				checkShownOutput(t, p.text.String())
			}
		})
	}
}

// serving begins the last line of --serve.
const serving = "Decisions, deliveries"

// checkEnd fails unless the program ends with a code, and leaves neither a process nor a file behind.
func (p *program) checkEnd(t *testing.T, code int) {
	t.Helper()
	if have := p.end(t); have != code {
		t.Fatalf("exit code %d, want %d:\n%s%s", have, code, &p.text, &p.stderr)
	}
	p.checkNothingLeft(t, 2*time.Second) // A process that was killed ends soon after, on a busy machine.
	if entries, err := os.ReadDir(p.tmp); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if code == 0 && p.stderr.Len() > 0 {
		t.Errorf("printed to stderr: %s", &p.stderr)
	}
}

// checkOutput fails unless each step has its line.
func checkOutput(t *testing.T, text string) {
	t.Helper()
	for _, want := range []string{
		"create .* accepted +started +[0-9]+ ms after the commit, sees replicas 1, image app:v1",
		"replicas 1 to 2 .* accepted +started +[0-9]+ ms after the commit, sees replicas 2, image app:v1",
		"only metadata.* unchanged +none, as expected",
		"dry run.* dry_run +none, as expected",
		"delete .* accepted +started +[0-9]+ ms after the commit, sees no Deployment",
		// More follow resyncs, as after a stall, a canary that is proved for the first time, or a commit that was late.
		`3 of 5 writes mattered. ([3-9]|\d\d) reconciles started: all of runtime-1, none of runtime-2`,
	} {
		if !matches(want, text) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	checkWaits(t, text)
}

// checkWaits fails if a reconcile started earlier than the shortest wait in the summary allows. The
// agent waits from its decision on, so a row counts from the start of the write.
func checkWaits(t *testing.T, text string) {
	t.Helper()
	if !strings.Contains(text, "3 reconciles started") || !strings.Contains(text, ": 4 accepted") {
		return // A resync started a reconcile as well, perhaps before an event was due.
	}
	var named []int
	for _, found := range regexp.MustCompile(`waits (?:only )?(\d+) ms`).FindAllStringSubmatch(text, -1) {
		named = append(named, lab.Must(strconv.Atoi(found[1])))
	}
	pattern := regexp.MustCompile(`(?m)^ {2}(\S.*?) +(\d+) ms +accepted +started +(\d+) ms after`)
	rows := pattern.FindAllStringSubmatch(text, -1)
	if len(named) == 0 || len(rows) != 3 {
		t.Fatalf("the summary names %d waits, and %d rows have a reconcile, want at least 1 and 3:\n%s",
			len(named), len(rows), text)
	}
	const rounding = 2 // ms, as both numbers of a row are rounded down
	for _, row := range rows {
		total := lab.Must(strconv.Atoi(row[2])) + lab.Must(strconv.Atoi(row[3]))
		if least := slices.Min(named); total+rounding < least {
			t.Errorf("%s: the reconcile started %d ms after the write began, but the agent waits at least %d ms:\n%s",
				row[1], total, least, text)
		}
	}
}

// TestCtrlCAtAnyMomentLeavesNothingBehind interrupts each stage with -moments=each.
func TestCtrlCAtAnyMomentLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	after := []string{"  create  "}
	if *moments == "each" {
		after = append(after, "Runtime Watcher", "  programs  ", "  API servers  ", "  operator  ", "  agent  ")
	}
	for _, text := range after {
		t.Run(strings.TrimSpace(text), func(t *testing.T) {
			t.Parallel()
			p := start(t, nil)
			p.readUntil(t, text)
			p.signal(t, syscall.SIGINT)
			p.checkEnd(t, machine.ExitInterrupted)
		})
	}
}

var moments = flag.String("moments", "one", "how many stages Ctrl-C interrupts beside the build: one, or each")

func TestCtrlCDuringTheBuildEndsTheCompilers(t *testing.T) {
	t.Parallel()
	p := start(t, []string{"GOCACHE=" + t.TempDir()})
	p.readUntil(t, "Runtime Watcher")
	lab.Eventually(t, 5*time.Minute, "a compiler runs", func() bool {
		return slices.ContainsFunc(p.children(t), func(child lab.Child) bool { return child.Name == "compile" })
	})
	p.signal(t, syscall.SIGINT)
	p.checkEnd(t, machine.ExitInterrupted)
}

func TestAnAgentThatEndsIsAFailureWithLogs(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.readUntil(t, "  agent  ")
	p.kill(t, "agent")
	p.checkFailure(t, "the agent ended", "agent.log")
}

// kill kills the child processes with a name.
func (p *program) kill(t *testing.T, name string) {
	t.Helper()
	for _, child := range p.children(t) {
		if child.Name == name {
			lab.NoError(t, syscall.Kill(child.Pid, syscall.SIGKILL))
		}
	}
}

// checkFailure fails unless the program ends and names the killed process, its log, and the folder
// with the logs.
func (p *program) checkFailure(t *testing.T, ended, log string) {
	t.Helper()
	if code := p.end(t); code != machine.ExitFailure {
		t.Errorf("exit code %d, want %d", code, machine.ExitFailure)
	}
	p.checkNothingLeft(t, 0)
	for _, want := range []string{ended, "signal: killed", "see " + log} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("no %q in\n%s", want, &p.stderr)
		}
	}
	found, err := filepath.Glob(filepath.Join(p.tmp, "*", "logs", log))
	if err != nil || len(found) != 1 || !strings.Contains(p.stderr.String(), filepath.Dir(found[0])) {
		t.Fatalf("logs %v, %v; want %s in the folder that stderr names:\n%s", found, err, log, &p.stderr)
	}
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  string
		want string
	}{
		{args: []string{"--contract=v9"}, want: `"v9": want one of [v1 v2`},
		{args: []string{"--transport=pigeon"}, want: `"pigeon": want http or nats`},
		{args: []string{"--transport=nats", "--contract=v2"}, want: "transport nats with contract v2: want v3"},
		{env: "v9", want: `"v9": want one of [v1 v2`},
		{args: []string{"--what"}, want: "-what"},
		{args: []string{"serve"}, want: `"serve": want flags only`},
	} {
		t.Run(fmt.Sprint(c.args, c.env), func(t *testing.T) {
			var stderr bytes.Buffer
			err := run(t.Context(), c.args, func(string) string { return c.env }, io.Discard, &stderr)
			if machine.ExitCode(err) != machine.ExitUsage || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("exit code %d, want %d; no %q in %q", machine.ExitCode(err), machine.ExitUsage, c.want, &stderr)
			}
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, os.Getenv, &stdout, io.Discard); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	for _, want := range []string{"-serve", "-port port", "-contract name", "-transport name"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %s in\n%s", want, &stdout)
		}
	}
}
