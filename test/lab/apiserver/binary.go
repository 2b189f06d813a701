package apiserver

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/program"
)

//go:embed build/*.mod build/*.sum
var buildFiles embed.FS

const (
	etcdModule       = "go.etcd.io/etcd/server/v3"
	kubernetesModule = "k8s.io/kubernetes"
)

// programs returns those of a control plane, the quick build first.
func programs(kubectl bool) (all []program.Program, err error) {
	etcd, err := versionOf("etcd", etcdModule)
	if err != nil {
		return nil, err
	}
	kubernetes, err := versionOf("kubernetes", kubernetesModule)
	if err != nil {
		return nil, err
	}
	all = []program.Program{{Name: "etcd", Version: etcd, Package: etcdModule, Lay: module("etcd"), LDFlags: "-s -w"}}
	names := []string{"kube-apiserver"}
	if kubectl {
		names = append(names, "kubectl")
	}
	for _, name := range names {
		all = append(all, program.Program{
			Name: name, Version: kubernetes, Package: kubernetesModule + "/cmd/" + name, Lay: module("kubernetes"),
			LDFlags: kubernetesLDFlags(kubernetes),
		})
	}
	return all, nil
}

// versionOf is the version that build/<files>.mod requires of a module.
func versionOf(files, module string) (string, error) {
	mod, err := buildFiles.ReadFile("build/" + files + ".mod")
	if err != nil {
		return "", err
	}
	return program.Required(string(mod), module)
}

// module writes the module file of build/<files>, and its checksums.
func module(files string) func(context.Context, string) error {
	return func(_ context.Context, folder string) (err error) {
		for _, ext := range []string{"mod", "sum"} {
			content, readErr := buildFiles.ReadFile("build/" + files + "." + ext)
			err = errors.Join(err, readErr, os.WriteFile(filepath.Join(folder, "go."+ext), content, 0o644))
		}
		return err
	}
}

// kubernetesLDFlags sets the version of the program: without it the API server reports v0.0.0, and
// clients that depend on the version decide wrongly.
func kubernetesLDFlags(version string) string {
	const at = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join([]string{
		"-s", "-w",
		"-X", at + "gitVersion=" + version,
		"-X", at + "gitMajor=" + parts[0],
		"-X", at + "gitMinor=" + parts[1],
		"-X", at + "gitTreeState=clean",
	}, " ")
}

// versionDir names the directory of the binaries. The platform is part of it, because a repository
// may be mounted into a container.
func versionDir(all []program.Program) string {
	return fmt.Sprintf("kubernetes-%s_etcd-%s_%s-%s", all[1].Version, all[0].Version, runtime.GOOS, runtime.GOARCH)
}
