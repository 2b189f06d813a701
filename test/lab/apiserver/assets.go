package apiserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// AssetsEnv names an environment variable with a directory. If set, Assets uses that directory and
// builds nothing.
const AssetsEnv = "KUBEBUILDER_ASSETS"

// AssetsOptions are the choices of [Assets]. The zero value is valid.
type AssetsOptions struct {
	// Kubectl also builds kubectl. Default: only kube-apiserver and etcd.
	Kubectl bool

	// Progress gets a line for every step of a build, and a line every 15 s. Default: os.Stderr.
	Progress io.Writer
}

// Assets returns the absolute path of a directory with kube-apiserver and etcd. If they do not
// exist, it builds them from their Go modules into bin/controlplane of the repository. The first
// build takes about five minutes and needs a Go toolchain and a module proxy. Later calls return
// immediately. When KUBEBUILDER_ASSETS is set, that directory is checked and returned, and nothing
// is built.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one process builds, and the others wait for it. An error says which program could not
// be built, and contains the end of the compiler's output.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	names := []string{"etcd", "kube-apiserver"} // The quick build first.
	if opts.Kubectl {
		names = append(names, "kubectl")
	}
	if given := os.Getenv(AssetsEnv); given != "" {
		return givenAssets(given, names)
	}

	repository, err := machine.Repository()
	if err != nil {
		return "", err
	}

	wanted, err := programs(filepath.Join(repository, "test", "lab", "apiserver", "build"), names)
	if err != nil {
		return "", err
	}

	// A repository may be mounted into a container, which has another platform.
	dir := filepath.Join(repository, "bin", "controlplane",
		fmt.Sprintf("kubernetes-%s_etcd-%s_%s-%s", wanted[1].Version, wanted[0].Version, runtime.GOOS, runtime.GOARCH))
	build := machine.Builder{Dir: dir, Progress: opts.Progress, Takes: "five minutes"}
	if err := build.Ensure(ctx, wanted...); err != nil {
		return "", fmt.Errorf("control plane binaries in %s: %w (or set %s to a directory that has them)", dir, err,
			AssetsEnv)
	}

	return dir, nil
}

func givenAssets(dir string, wanted []string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", AssetsEnv, err)
	}

	for _, name := range wanted {
		if !machine.Executable(filepath.Join(dir, name)) {
			return "", fmt.Errorf("%s is %s, which has no executable file %s: correct it, or unset it to have the "+
				"binaries built", AssetsEnv, dir, name)
		}
	}

	return dir, nil
}

// programs returns the programs of a control plane, which module files in a folder require.
func programs(folder string, names []string) (all []machine.Program, err error) {
	for _, name := range names {
		file := "kubernetes.mod"
		module := "k8s.io/kubernetes"
		path := "/cmd/" + name
		if name == "etcd" {
			file = "etcd.mod"
			module = "go.etcd.io/etcd/server/v3"
			path = ""
		}

		p := machine.Program{Name: name, Mod: filepath.Join(folder, file), Package: module + path, LDFlags: "-s -w"}
		if p.Version, err = machine.Required(p.Mod, module); err != nil {
			return nil, err
		}
		if name != "etcd" {
			p.LDFlags = kubernetesLDFlags(p.Version)
		}

		all = append(all, p)
	}
	return all, nil
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
