package certmanager

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
	"github.com/runtime-watcher/runtime-watcher/test/lab/program"
)

// module has the packages of the program, and the custom resource definitions.
const module = "github.com/cert-manager/cert-manager"

// sources is the folder with our part of the program.
const sources = "test/lab/certmanager/build"

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
	repository, err := machine.Repository()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(repository, sources)
	// The file by its name: its build constraint keeps it from the packages of this repository.
	controllers := program.Program{
		Name: "certmanager", Mod: filepath.Join(folder, "certmanager.mod"), Package: filepath.Join(folder, "main.go"), LDFlags: "-s -w",
	}
	if controllers.Version, err = program.Required(controllers.Mod, module); err != nil {
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
	build := program.Builder{Dir: dir, Progress: opts.Progress, Takes: "two to three minutes"}
	if err := build.Ensure(ctx, controllers); err != nil {
		return "", fmt.Errorf("cert-manager's controllers: %w", err)
	}
	return filepath.Join(dir, controllers.Name), nil
}

// Definitions returns the files of the custom resource definitions, which cert-manager's module has.
func Definitions(ctx context.Context) ([]string, error) {
	repository, err := machine.Repository()
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(repository, sources)
	modfile := "-modfile=" + filepath.Join(folder, "certmanager.mod")
	if _, err := machine.Go(ctx, folder, nil, "mod", "download", modfile, module); err != nil {
		return nil, err
	}
	dir, err := machine.Go(ctx, folder, nil, "list", modfile, "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "deploy", "crds", "cert-manager.io_*.yaml"))
}
