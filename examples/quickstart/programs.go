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

	"github.com/runtime-watcher/runtime-watcher/test/controlplane" //nolint:depguard // An example is not released either.
)

// build makes sure that the programs are there. The first time takes minutes.
func (s *scene) build(ctx context.Context) (string, error) {
	var err error

	s.assets, err = controlplane.Assets(ctx, controlplane.AssetsOptions{
		Kubectl:  s.buildsKubectl(),
		Progress: progress{s.report, "controlplane: "},
	})
	if err != nil {
		return "", err
	}

	if s.agentBinary, err = buildAgent(ctx, s.dir); err != nil {
		return "", err
	}

	version, err := exec.CommandContext(ctx, filepath.Join(s.assets, "kube-apiserver"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask kube-apiserver for its version: %w", err)
	}

	return fmt.Sprintf("kube-apiserver %s and its etcd, agent: built from source", strings.TrimPrefix(strings.TrimSpace(string(version)), "Kubernetes ")), nil
}

// buildsKubectl reports whether there is a use for a kubectl, and none.
func (s *scene) buildsKubectl() bool {
	_, err := exec.LookPath("kubectl")

	return s.settings.serve && err != nil && os.Getenv(controlplane.AssetsEnv) == ""
}

// buildAgent compiles the agent, or finds that it is up to date. What the compilers leave in scratch when they are interrupted, the caller removes.
func buildAgent(ctx context.Context, scratch string) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}

	path := filepath.Join(root, "bin", "quickstart", "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = filepath.Join(root, "cmd", "agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOTMPDIR="+scratch)
	cmd.SysProcAttr = ownGroup()
	// As Ctrl-C does: the compilers, too. The go command alone would leave them running.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second

	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}

	if err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, bytes.TrimSpace(output))
	}

	return path, nil
}

// repository returns the root of the repository, which holds the source of the agent.
func repository() (string, error) {
	_, source, _, _ := runtime.Caller(0) // Not a path when built with -trimpath.
	working, _ := os.Getwd()             // Without, the source counts.

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

	return "", errors.New("the source of the agent is not found: run this in a clone of the repository")
}
