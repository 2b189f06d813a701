package lab

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// grace is how long a process may take to end by itself.
const grace = 10 * time.Second

// process is a program that runs. Its log goes to a file.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

// launch starts a program with that environment and no other. Its log is added to a file.
func launch(log, path string, env, args []string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// The process has its own handle.
	defer file.Close()

	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{}), log: log} //nolint:noctx // stop ends it.
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = env, file, file, ownGroup()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has the result.
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // It may have ended.
	<-p.done
}

// stop ends the process gracefully, or else after some seconds by force.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
		p.kill()
	}
}

// said reports whether the log has a text.
func (p *process) said(text string) bool {
	log, err := os.ReadFile(p.log)
	return err == nil && bytes.Contains(log, []byte(text))
}
