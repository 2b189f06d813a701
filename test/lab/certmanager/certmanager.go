// Package certmanager runs cert-manager's own controllers against an API server, for tests.
//
// The controllers are a separate program, built on demand in a module of its own (build/README.md).
// cert-manager needs a hundred modules, and other versions of Kubernetes than this repository. The
// program signs with CA and self-signed issuers. It has neither the webhook nor the CA injector.
package certmanager

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Options are the choices of [Start]. The zero value is good.
type Options struct {
	// Assets are the choices for the program.
	Assets AssetsOptions
	// Verbose makes the controllers log each step. Default: only failures.
	Verbose bool
	// StartTimeout bounds the start, without the time to build the program. Default: 60 s.
	StartTimeout time.Duration
}

// Process is cert-manager at work. Its methods may be called concurrently.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	stop sync.Once
}

// Start applies cert-manager's custom resource definitions to the API server of a kubeconfig, and
// runs the controllers there. It returns when they are at work; ctx bounds the start only. The
// caller must call [Process.Stop], before the API server stops: that waits for open watches. The
// process does not outlive this one.
func Start(ctx context.Context, kubeconfig string, opts Options) (*Process, error) {
	program, err := Assets(ctx, opts.Assets)
	if err != nil {
		return nil, err
	}

	if opts.StartTimeout == 0 {
		opts.StartTimeout = time.Minute
	}

	ctx, cancel := context.WithTimeoutCause(ctx, opts.StartTimeout, fmt.Errorf("not ready after %s", opts.StartTimeout))
	defer cancel()

	p, ready, err := launch(program, kubeconfig, opts)
	if err != nil {
		return nil, fmt.Errorf("start cert-manager: %w", err)
	}

	select {
	case <-ready:
		return p, nil
	case <-p.done:
		err = errors.New(p.cmd.ProcessState.String())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}

	text := p.Log() // It goes with Stop.
	p.Stop()
	return nil, fmt.Errorf("start cert-manager: %w\n%s", err, text)
}

func launch(program, kubeconfig string, opts Options) (*Process, <-chan struct{}, error) {
	log, err := os.CreateTemp("", "certmanager-*.log")
	if err != nil {
		return nil, nil, err
	}
	defer log.Close() // The child has its own descriptor.

	p := &Process{log: log.Name(), done: make(chan struct{})}

	p.cmd = exec.Command(program, "-kubeconfig="+kubeconfig, fmt.Sprintf("-v=%t", opts.Verbose)) // Its life is that of p.
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}

	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(p.log))
	}

	ready := make(chan struct{})

	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == "ready" {
				close(ready)
			}
		}

		_ = p.cmd.Wait() // ProcessState has the result.
	}()
	return p, ready, nil
}

// Log returns the end of the controllers' log.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return end(string(text))
}

// Pid is that of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stop ends the controllers and waits for them: in good order, or else, after 5 s, for good.
func (p *Process) Stop() { p.stop.Do(p.end) }

func (p *Process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()

		<-p.done
	}

	_ = os.Remove(p.log) // It is in the directory for temporary files.
}

// StartT is [Start] for a test: a failure ends the test, and the controllers stop with it. That
// they end before is a failure, too. Call it after apiserver.StartT, so that they stop before
// their API server does.
func StartT(t testing.TB, kubeconfig string, opts Options) *Process {
	t.Helper()
	p, err := Start(t.Context(), kubeconfig, opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		p.stop.Do(func() {
			p.report(t)
			p.end()
		})
	})
	return p
}

func (p *Process) report(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
		t.Errorf("cert-manager has ended by itself: %s", p.cmd.ProcessState)
	default:
	}

	if t.Failed() {
		t.Logf("log of cert-manager:\n%s", strings.TrimSpace(p.Log()))
	}
}
