// Package certmanager runs cert-manager's own controllers against an API server, for tests.
//
// The controllers are a separate program, built on demand in a module of its own (build/README.md).
// cert-manager needs a hundred modules, and other versions of Kubernetes than this repository. The
// program signs with CA and self-signed issuers. It has neither the webhook nor the CA injector.
package certmanager

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// Options are the choices of [Start]. The zero value is good.
type Options struct {
	// Verbose makes the controllers log each step. Default: only failures.
	Verbose bool
	// LogFile gets the log, and stays. Default: a temporary file.
	LogFile string
}

// startTimeout bounds the start, without the time to build the program.
const startTimeout = 3 * time.Minute

// Process is cert-manager at work. Its methods may be called concurrently.
type Process struct {
	*machine.Process

	log       string
	temporary bool
	stop      sync.Once
}

// Start installs cert-manager's custom resource definitions in the API server of a kubeconfig, and
// runs the controllers there. It returns when they are at work; ctx bounds the start only. The
// caller must call [Process.Stop], before the API server stops: that waits for open watches. The
// process does not outlive this one.
func Start(ctx context.Context, kubeconfig string, opts Options) (*Process, error) {
	binary, err := Assets(ctx, AssetsOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	if err := install(ctx, kubeconfig); err != nil {
		return nil, fmt.Errorf("cert-manager's definitions: %w", err)
	}
	p, err := launch(binary, kubeconfig, opts)
	if err != nil {
		return nil, fmt.Errorf("start cert-manager: %w", err)
	}
	err = machine.Poll(ctx, func() bool { return p.Said("ready\n") || !p.Running() })
	if err == nil && p.Running() {
		return p, nil
	}
	text := p.Log() // It goes with Stop.
	p.Stop()
	return nil, fmt.Errorf("start cert-manager: %w\n%s", err, text)
}

// install returns when the API server serves the custom resource definitions.
func install(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	files, err := Definitions(ctx)
	if err != nil {
		return err
	}
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: files, ErrorIfPathMissing: true, MaxTime: startTimeout})
	return err
}

func launch(binary, kubeconfig string, opts Options) (p *Process, err error) {
	p = &Process{log: opts.LogFile}
	if p.log == "" {
		file, err := os.CreateTemp("", "certmanager-*.log")
		if err != nil {
			return nil, err
		}
		_ = file.Close() // It is empty.
		p.log, p.temporary = file.Name(), true
	}
	args := []string{"-kubeconfig=" + kubeconfig, fmt.Sprintf("-v=%t", opts.Verbose)}
	p.Process, err = machine.Launch(p.log, binary, os.Environ(), args)
	return p, err
}

// Log returns the end of the controllers' log.
func (p *Process) Log() string { return machine.TailOf(p.log, 20) }

// Stop ends the controllers and waits for them: in good order, or else, after some seconds, for good.
func (p *Process) Stop() { p.stop.Do(p.end) }

func (p *Process) end() {
	p.Process.Stop()
	if p.temporary {
		_ = os.Remove(p.log) // It is in the directory for temporary files.
	}
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
	if !p.Running() {
		t.Error("cert-manager has ended by itself")
	}
	if t.Failed() {
		t.Logf("log of cert-manager:\n%s", strings.TrimSpace(p.Log()))
	}
}
