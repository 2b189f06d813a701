// Package certmanager runs cert-manager's own controllers against an API server, for tests.
//
// The controllers are a separate program, built on demand in a separate module (build/README.md).
// cert-manager needs a hundred modules, and versions of Kubernetes that differ from this
// repository. The program signs with CA and self-signed issuers. It has neither the webhook nor the
// CA injector.
package certmanager

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// Options are the choices of [Start]. The zero value is valid.
type Options struct {
	// Verbose makes the controllers log each step. Default: only failures.
	Verbose bool
	// LogFile is the path of the log. The file stays. Default: a temporary file.
	LogFile string
}

// startTimeout bounds the start, without the time to build the program.
const startTimeout = 3 * time.Minute

// Process is cert-manager at work. Its methods may be called concurrently.
type Process struct {
	*machine.Process

	log       string
	temporary bool
}

// Start installs cert-manager's custom resource definitions in the API server of a kubeconfig, and
// runs the controllers there. It returns when they are running. ctx bounds only the start. The
// caller must call [Process.Stop] before the API server stops, because the API server waits for
// open watches. The controllers end with this process at the latest.
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
		p.log = file.Name()
		p.temporary = true
	}

	args := []string{"-kubeconfig=" + kubeconfig, fmt.Sprintf("-v=%t", opts.Verbose)}
	p.Process, err = machine.Launch(p.log, binary, os.Environ(), args)
	return p, err
}

// Log returns the end of the controllers' log.
func (p *Process) Log() string { return machine.TailOf(p.log, 20) }

// Stop ends the controllers gracefully, and kills them if they have not ended after some seconds.
func (p *Process) Stop() {
	p.Process.Stop()
	if p.temporary {
		_ = os.Remove(p.log) // It is in the directory for temporary files.
	}
}

// StartT is [Start] for a test: a failure ends the test, and the controllers stop with it. If they
// end earlier, the test fails as well. Call StartT after apiserver.StartT, so that the controllers
// stop before their API server.
func StartT(t testing.TB, kubeconfig string, opts Options) *Process {
	t.Helper()

	p, err := Start(t.Context(), kubeconfig, opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		p.report(t)
		p.Stop()
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

// module contains the packages of the program, and the custom resource definitions.
const module = "github.com/cert-manager/cert-manager"

// sources is the folder with our part of the machine.
const sources = "test/lab/certmanager/build"

// AssetsOptions are the choices of [Assets]. The zero value is valid.
type AssetsOptions struct {
	// Progress gets a line when a build begins and ends. Default: [os.Stderr].
	Progress io.Writer
}

// Assets returns the path of a program that runs cert-manager's controllers, and builds it from
// cert-manager's module into bin/certmanager of the repository when it is not there. The first
// build takes two to three minutes on two cores and needs a Go toolchain and a module proxy. Later
// calls return immediately.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one process builds, and the others wait for it.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	repository, err := machine.Repository()
	if err != nil {
		return "", err
	}

	folder := filepath.Join(repository, sources)
	// The file by its name: its build constraint keeps it from the packages of this repository.
	controllers := machine.Program{
		Name: "certmanager", Mod: filepath.Join(folder, "certmanager.mod"), Package: filepath.Join(folder, "main.go"), LDFlags: "-s -w",
	}
	if controllers.Version, err = machine.Required(controllers.Mod, module); err != nil {
		return "", err
	}

	sum := sha256.New()
	for _, name := range []string{"certmanager.mod", "certmanager.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", err
		}

		sum.Write(content)
	}

	dir := filepath.Join(repository, "bin", "certmanager",
		fmt.Sprintf("%s_%s-%s_%x", controllers.Version, runtime.GOOS, runtime.GOARCH, sum.Sum(nil)[:4]))
	build := machine.Builder{Dir: dir, Progress: opts.Progress, Takes: "two to three minutes"}
	if err := build.Ensure(ctx, controllers); err != nil {
		return "", fmt.Errorf("cert-manager's controllers: %w", err)
	}

	return filepath.Join(dir, controllers.Name), nil
}

// Definitions returns the files of the custom resource definitions in cert-manager's module.
func Definitions(ctx context.Context) ([]string, error) {
	repository, err := machine.Repository()
	if err != nil {
		return nil, err
	}

	folder := filepath.Join(repository, sources)
	dir, err := machine.Module(ctx, folder, module, "-modfile="+filepath.Join(folder, "certmanager.mod"))
	if err != nil {
		return nil, err
	}

	return filepath.Glob(filepath.Join(dir, "deploy", "crds", "cert-manager.io_*.yaml"))
}
