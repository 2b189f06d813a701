package lab

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// Process is a program that a test starts, kills and starts again. The test ends it, and shows its
// log when it failed.
type Process struct {
	*machine.Process

	t               testing.TB
	name, path, log string
	env, args       []string
}

// NewProcess returns a process of the program at path with only the given environment, and with the
// arguments. It is not running yet.
func NewProcess(t testing.TB, name, path string, env []string, args ...string) *Process {
	t.Helper()

	p := &Process{t: t, name: name, path: path, env: env, args: args}
	if demo := demoOf(t); demo != nil {
		p.log = demo.LogFile(name + ".log")
	} else {
		p.log = filepath.Join(t.TempDir(), name+".log")
	}

	t.Cleanup(p.cleanup)
	return p
}

// Launch starts the program and does not wait until it is ready. A program that is already running
// continues.
func (p *Process) Launch() {
	p.t.Helper()

	if p.Running() {
		return
	}

	var err error
	if p.Process, err = machine.Launch(p.log, p.path, p.env, p.args); err != nil {
		p.t.Fatal(err)
	}
}

// Running reports whether the program was started and has not ended.
func (p *Process) Running() bool { return p.Process != nil && p.Process.Running() }

// Freeze stops the program until Thaw. It keeps its memory, files and connections.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw lets the program continue.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s os.Signal) {
	p.t.Helper()
	NoError(p.t, p.Signal(s))
}

func (p *Process) cleanup() {
	if p.Process != nil {
		p.Kill()
	}
	if p.t.Failed() {
		p.t.Logf("log of the %s:\n%s", p.name, p.Log())
	}
}

// Log returns the end of the log of the program.
func (p *Process) Log() string { return machine.TailOf(p.log, 200) }

// FullLog returns the log of the program.
func (p *Process) FullLog() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Child is a running process.
type Child struct {
	Pid  int
	Name string
}

// Session returns the running processes of a session, except its leader: all that a process has
// started that began with Setsid, however they ended up.
func Session(t testing.TB, leader int) []Child {
	t.Helper()
	if _, err := procfs.Self(); err != nil {
		t.Skip("needs /proc")
	}
	return processes(func(s procfs.ProcStat) bool { return s.Session == leader && s.PID != leader && s.State != "Z" })
}

// Children returns the processes that this process has started, including processes that have ended
// and are not waited for.
func Children() []Child {
	return processes(func(s procfs.ProcStat) bool { return s.PPID == os.Getpid() })
}

func processes(wanted func(procfs.ProcStat) bool) (all []Child) {
	running, _ := procfs.AllProcs() // None without /proc.
	for _, process := range running {
		if stat, err := process.Stat(); err == nil && wanted(stat) { // Others have ended.
			all = append(all, Child{Pid: stat.PID, Name: stat.Comm})
		}
	}
	return all
}
