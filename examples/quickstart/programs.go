package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// build builds missing or outdated programs. The first build takes minutes.
func (d *demo) build(ctx context.Context) (string, error) {
	var err error
	d.assets, err = apiserver.Assets(ctx, apiserver.AssetsOptions{Kubectl: d.buildsKubectl(), Progress: d.report})
	if err != nil {
		return "", err
	}
	fmt.Fprintln(d.report, "building cmd/agent")
	d.agentBinary, err = machine.Build(ctx, "cmd/agent", "quickstart", d.dir)
	if err == nil && d.settings.nats {
		d.brokerBinary, err = machine.Build(ctx, "test/lab/natsserver", "quickstart", d.dir)
	}
	if err != nil {
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
