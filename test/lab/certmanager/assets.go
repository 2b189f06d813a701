package certmanager

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test"
	"github.com/runtime-watcher/runtime-watcher/test/lab/program"
)

//go:embed build/*.mod build/*.sum build/main.go
var buildFiles embed.FS

// module has the packages of the program, and the custom resource definitions.
const module = "github.com/cert-manager/cert-manager"

// AssetsOptions are the choices of [Assets]. The zero value is good.
type AssetsOptions struct {
	// Progress gets a line when a build begins and ends. Default: [os.Stderr].
	Progress io.Writer
}

// Assets returns the path of a program that runs cert-manager's controllers, and builds it from
// cert-manager's module into bin/certmanager of the repository when it is not there. The first build
// takes two to three minutes on two cores and needs a Go toolchain and a module proxy; afterwards
// Assets returns at once.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one builds, the others wait for it.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	version, hash, err := versionOf()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(test.Root(), "bin", "certmanager", fmt.Sprintf("%s_%s-%s_%.8s", version, runtime.GOOS, runtime.GOARCH, hash))
	build := program.Builder{Dir: dir, Progress: opts.Progress, Takes: "two to three minutes"}
	// The file by its name: its build constraint keeps it from the packages of this repository.
	controllers := program.Program{
		Name: "certmanager", Version: version, Package: "main.go", Lay: lay, LDFlags: "-s -w", Env: environment(),
	}
	if err := build.Ensure(ctx, controllers); err != nil {
		return "", fmt.Errorf("cert-manager's controllers: %w", err)
	}
	return filepath.Join(dir, controllers.Name), nil
}

func environment() []string { return []string{"GOFLAGS=-mod=mod", "CGO_ENABLED=0"} }

// versionOf returns cert-manager's version, and a hash of our part of the program.
func versionOf() (version, hash string, err error) {
	sum := sha256.New()
	for _, name := range []string{"certmanager.mod", "certmanager.sum", "main.go"} {
		content, err := buildFiles.ReadFile("build/" + name)
		if err != nil {
			return "", "", err
		}
		sum.Write(content)
	}
	mod, err := buildFiles.ReadFile("build/certmanager.mod")
	if err != nil {
		return "", "", err
	}
	version, err = program.Required(string(mod), module)
	return version, hex.EncodeToString(sum.Sum(nil)), err
}

// lay lays out the module: ours, and the custom resource definitions of cert-manager's beside it, to
// be embedded.
func lay(ctx context.Context, folder string) error {
	for from, to := range map[string]string{
		"certmanager.mod": "go.mod", "certmanager.sum": "go.sum",
		"main.go": "main.go",
	} {
		content, err := buildFiles.ReadFile("build/" + from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, to), content, 0o644); err != nil {
			return err
		}
	}
	if _, err := program.Go(ctx, folder, environment(), "mod", "download", module); err != nil {
		return err
	}
	source, err := program.Go(ctx, folder, environment(), "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	return copyDefinitions(filepath.Join(strings.TrimSpace(source), "deploy", "crds"), filepath.Join(folder, "crds"))
}

func copyDefinitions(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "cert-manager.io_*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no custom resource definitions in %s: %w", from, errors.Join(err, fs.ErrNotExist))
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
