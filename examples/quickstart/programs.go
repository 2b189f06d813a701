package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// build builds missing or outdated programs. The first build takes minutes.
func (d *demo) build(ctx context.Context) (string, error) {
	var err error

	d.assets, err = apiserver.Assets(ctx, apiserver.AssetsOptions{
		Kubectl:  d.buildsKubectl(),
		Progress: progress{d.report, "controlplane: "},
	})
	if err != nil {
		return "", err
	}

	if err := d.buildPrograms(ctx); err != nil {
		return "", err
	}

	version, err := exec.CommandContext(ctx, filepath.Join(d.assets, "kube-apiserver"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("kube-apiserver --version: %w", err)
	}

	name := strings.TrimPrefix(strings.TrimSpace(string(version)), "Kubernetes ")
	return fmt.Sprintf("kube-apiserver %s and its etcd, agent: built from source", name), nil
}

// buildsKubectl reports whether --serve needs a kubectl.
func (d *demo) buildsKubectl() bool {
	_, err := exec.LookPath("kubectl")
	return d.settings.serve && err != nil && os.Getenv(apiserver.AssetsEnv) == ""
}

// buildPrograms compiles the agent, and the NATS server if there is one.
func (d *demo) buildPrograms(ctx context.Context) (err error) {
	if !d.settings.nats {
		d.agentBinary, err = buildProgram(ctx, "cmd/agent", d.dir)
		return err
	}
	if d.agentBinary, err = buildProgram(ctx, "examples/natsagent", d.dir); err != nil {
		return err
	}
	d.brokerBinary, err = buildProgram(ctx, "test/lab/natsserver", d.dir)
	return err
}

// buildProgram compiles the program in a folder if it is outdated. The caller removes scratch,
// where interrupted compilers leave files.
func buildProgram(ctx context.Context, folder, scratch string) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}

	path := filepath.Join(root, "bin", "quickstart", filepath.Base(folder))
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = filepath.Join(root, filepath.FromSlash(folder))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOTMPDIR="+scratch)
	cmd.SysProcAttr = machine.OwnGroup()
	// The whole group: the go command alone would leave the compilers behind.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second

	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}

	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", folder, err, bytes.TrimSpace(output))
	}

	return path, nil
}

// repository returns the root of the repository, with the source of the agent.
func repository() (string, error) {
	_, source, _, _ := runtime.Caller(0) // No path with -trimpath.
	working, _ := os.Getwd()             // On error, only source counts.
	for _, dir := range []string{filepath.Dir(source), working} {
		for ; filepath.IsAbs(dir); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "cmd", "agent", "go.mod")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no source of the agent: run this in a clone of the repository")
}
