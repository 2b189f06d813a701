package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Process is a program that a test starts, kills and starts again. The test ends it, and shows its
// log when it failed.
type Process struct {
	t    testing.TB
	name string
	path string
	env  []string
	args []string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// NewProcess returns a process of the program at path with that environment, and no other, and with
// the arguments. It is not running yet.
func NewProcess(t testing.TB, name, path string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, name: name, path: path, env: env, args: args, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(p.cleanup)
	return p
}

// Launch starts the program and does not wait until it is ready. One that runs goes on.
func (p *Process) Launch() {
	p.t.Helper()
	if p.Running() {
		return
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()                      // The child has its own descriptor.
	cmd := exec.Command(p.path, p.args...) // Its life is that of the Process.
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // ProcessState has the result.
	}()
}

// Running reports whether the program was started and has not ended.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the program as a crash would.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Stop ends the program in good order, and returns its exit code.
func (p *Process) Stop() int {
	p.signal(syscall.SIGTERM)
	return p.cmd.ProcessState.ExitCode()
}

// Freeze stops the program until Thaw. It keeps its memory, files and connections.
func (p *Process) Freeze() { p.mustSignal(syscall.SIGSTOP) }

// Thaw lets the program go on.
func (p *Process) Thaw() { p.mustSignal(syscall.SIGCONT) }

func (p *Process) mustSignal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Process) signal(s os.Signal) {
	_ = p.cmd.Process.Signal(s) // It may have ended.
	<-p.done
}

// Pid is that of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

func (p *Process) cleanup() {
	if p.cmd != nil {
		p.signal(syscall.SIGKILL)
	}
	if p.t.Failed() {
		p.t.Logf("log of the %s:\n%s", p.name, p.Log())
	}
}

// Log returns the end of the log of the program.
func (p *Process) Log() string {
	text := p.FullLog()
	const most = 20_000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return text
}

// FullLog returns the log of the program.
func (p *Process) FullLog() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
