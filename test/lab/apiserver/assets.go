package apiserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
	"github.com/runtime-watcher/runtime-watcher/test/lab/program"
)

// AssetsEnv names an environment variable with a directory. If set, Assets uses that directory and
// builds nothing.
const AssetsEnv = "KUBEBUILDER_ASSETS"

// AssetsOptions are the choices of [Assets]. The zero value is good.
type AssetsOptions struct {
	// Kubectl asks for kubectl beside kube-apiserver and etcd. Default: false.
	Kubectl bool

	// Progress gets a line for every step of a build, and one every 15 s. Default: os.Stderr.
	Progress io.Writer
}

// Assets returns the absolute path of a directory that holds kube-apiserver and etcd, and builds
// them from their Go modules into bin/controlplane of the repository when they are not there. The first build takes about five minutes and
// needs a Go toolchain and a module proxy; afterwards Assets returns at once. When
// KUBEBUILDER_ASSETS is set, that directory is checked and returned, and nothing is built.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one builds, the others wait for it. An error says which program could not be built,
// and holds the end of the compiler's output.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	wanted, err := programs(opts.Kubectl)
	if err != nil {
		return "", err
	}
	if given := os.Getenv(AssetsEnv); given != "" {
		return givenAssets(given, wanted)
	}
	repository, err := machine.Repository()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(repository, "bin", "controlplane", versionDir(wanted))
	build := program.Builder{Dir: dir, Progress: opts.Progress, Takes: "five minutes"}
	if err := build.Ensure(ctx, wanted...); err != nil {
		return "", fmt.Errorf("control plane binaries in %s: %w (or set %s to a directory that has them)", dir, err,
			AssetsEnv)
	}
	return dir, nil
}

func givenAssets(dir string, wanted []program.Program) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", AssetsEnv, err)
	}
	if absent := program.Missing(dir, wanted...); len(absent) > 0 {
		return "", fmt.Errorf("%s is %s, which has no executable file %s: correct it, or unset it to have the "+
			"binaries built",
			AssetsEnv, dir, absent[0].Name)
	}
	return dir, nil
}
