// Package machine simulates machines and networks for demos and tests: it runs processes, and
// connections that can be redirected and cut.
package machine

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// grace is how long a process may take to end by itself.
const grace = 10 * time.Second

// Process is a program that runs. Its log goes to a file.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// Launch starts a program with only the given environment. Its log is appended to a file.
func Launch(log, path string, env, args []string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// The process has its own handle.
	defer file.Close()

	cmd := exec.Command(path, args...) // Stop ends it.
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = env, file, file, OwnGroup()
	p, err := Follow(cmd)
	if err != nil {
		return nil, err
	}

	p.log = log
	return p, nil
}

// Follow starts a command.
func Follow(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}

	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has the result.
	}()
	return p, nil
}

// Running reports whether the program has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.done }

// Signal sends a signal. It fails when the process has ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// State is the state of a process that has ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Kill ends the process as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // It may have ended.
	<-p.done
}

// Stop ends the process gracefully, and kills the process if it has not ended after some seconds.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	late := time.NewTimer(grace)
	defer late.Stop()

	select {
	case <-p.done:
	case <-late.C:
		p.Kill()
	}
}

// Said reports whether the log has a text.
func (p *Process) Said(text string) bool {
	log, err := os.ReadFile(p.log)
	return err == nil && bytes.Contains(log, []byte(text))
}

// Pid returns the id of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }
