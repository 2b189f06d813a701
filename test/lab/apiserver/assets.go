package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// AssetsEnv names an environment variable with a directory. If set, Assets uses that directory and
// builds nothing.
const AssetsEnv = "KUBEBUILDER_ASSETS"

// AssetsOptions are the choices of [Assets]. The zero value is good.
type AssetsOptions struct {
	// Dir is where a directory per version is kept. Default: bin/controlplane in the repository,
	// found upwards from this package's source or from the working directory, and outside of a
	// repository the user's cache directory.
	Dir string

	// Kubectl asks for kubectl beside kube-apiserver and etcd. Default: false.
	Kubectl bool

	// Progress gets a line for every step of a build, and one every 15 s. Default: os.Stderr.
	Progress io.Writer
}

// Assets returns the absolute path of a directory that holds kube-apiserver and etcd, and builds
// them from their Go modules when they are not there. The first build takes about five minutes and
// needs a Go toolchain and a module proxy; afterwards Assets returns at once. When
// KUBEBUILDER_ASSETS is set, that directory is checked and returned, and nothing is built.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one builds, the others wait for it. An error says which program could not be built,
// and holds the end of the compiler's output.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	wanted := binaries(opts.Kubectl)
	if given := os.Getenv(AssetsEnv); given != "" {
		return givenAssets(given, wanted)
	}
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	dir, err := assetsDir(opts.Dir)
	if err != nil {
		return "", err
	}
	b := &builder{dir: dir, progress: opts.Progress, compile: compile, heartbeat: 15 * time.Second}
	if err := b.ensure(ctx, wanted); err != nil {
		return "", fmt.Errorf("control plane binaries in %s: %w (or set %s to a directory that has them)", dir, err,
			AssetsEnv)
	}
	return dir, nil
}

func givenAssets(dir string, wanted []binary) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", AssetsEnv, err)
	}
	if absent := missing(dir, wanted); len(absent) > 0 {
		return "", fmt.Errorf("%s is %s, which has no executable file %s: correct it, or unset it to have the "+
			"binaries built",
			AssetsEnv, dir, absent[0].name)
	}
	return dir, nil
}

// missing returns those of wanted that are not executable files in dir.
func missing(dir string, wanted []binary) []binary {
	var absent []binary
	for _, b := range wanted {
		info, err := os.Stat(filepath.Join(dir, b.name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			absent = append(absent, b)
		}
	}
	return absent
}

func assetsDir(root string) (string, error) {
	version, err := versionDir()
	if err != nil {
		return "", err
	}
	if root == "" {
		if root, err = defaultRoot(); err != nil {
			return "", err
		}
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return "", fmt.Errorf("directory for the control plane binaries: %w", err)
	}
	return filepath.Join(root, version), nil
}

func defaultRoot() (string, error) {
	var starts []string
	// Not a path when built with -trimpath.
	if _, source, _, ok := runtime.Caller(0); ok && filepath.IsAbs(source) {
		starts = append(starts, filepath.Dir(source))
	}
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	for _, start := range starts {
		if repository, ok := findRepository(start); ok {
			return filepath.Join(repository, "bin", "controlplane"), nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no repository above %q and no cache directory, set AssetsOptions.Dir: %w", starts, err)
	}
	return filepath.Join(cache, "runtime-watcher", "controlplane"), nil
}

// findRepository walks up from dir to the repository that holds this module.
func findRepository(dir string) (string, bool) {
	for {
		_, err := os.Stat(filepath.Join(dir, "test", "go.mod"))
		if err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir || !errors.Is(err, fs.ErrNotExist) {
			return "", false
		}
		dir = parent
	}
}
