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
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test"
)

//go:embed build/*.mod build/*.sum build/main.go
var buildFiles embed.FS

// module has the packages of the program, and the custom resource definitions.
const module = "github.com/cert-manager/cert-manager"

// AssetsOptions are the choices of [Assets]. The zero value is good.
type AssetsOptions struct {
	// Dir is where a directory per version is kept. Default: bin/certmanager in the repository.
	Dir string
	// Progress gets a line when a build begins and ends. Default: [os.Stderr].
	Progress io.Writer
}

// Assets returns the path of a program that runs cert-manager's controllers, and builds it from
// cert-manager's module when it is not there. The first build takes two to three minutes on two
// cores and needs a Go toolchain and a module proxy; afterwards Assets returns at once.
//
// It blocks until the build is done or ctx ends. It may be called concurrently, also by several
// processes: one builds, the others wait for it.
func Assets(ctx context.Context, opts AssetsOptions) (string, error) {
	if opts.Dir == "" {
		opts.Dir = filepath.Join(test.Root(), "bin", "certmanager")
	}
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	version, err := versionOf()
	if err != nil {
		return "", err
	}
	program := filepath.Join(opts.Dir, version, "certmanager")
	if exists(program) {
		return program, nil
	}
	if err := build(ctx, program, opts.Progress); err != nil {
		return "", fmt.Errorf("build cert-manager's controllers: %w", err)
	}
	return program, nil
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// versionOf returns cert-manager's version, the platform and a hash of our part of the program.
func versionOf() (string, error) {
	sum := sha256.New()
	for _, name := range []string{"certmanager.mod", "certmanager.sum", "main.go"} {
		content, err := buildFiles.ReadFile("build/" + name)
		if err != nil {
			return "", err
		}
		sum.Write(content)
	}
	mod, err := buildFiles.ReadFile("build/certmanager.mod")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mod)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == module {
			return fmt.Sprintf("%s_%s-%s_%.8s", fields[1], runtime.GOOS, runtime.GOARCH, hex.EncodeToString(sum.Sum(nil))), nil
		}
	}
	return "", fmt.Errorf("certmanager.mod requires no %s", module)
}

// build makes the program appear all at once, and is alone at it.
func build(ctx context.Context, program string, progress io.Writer) error {
	dir := filepath.Dir(program)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil || exists(program) {
		return errors.Join(err, unlock())
	}
	defer func() { _ = unlock() }() // The system unlocks it, too, when this process ends.
	scratch := filepath.Join(dir, ".build")
	if err := errors.Join(os.RemoveAll(scratch), prepare(ctx, scratch)); err != nil {
		return err
	}
	defer os.RemoveAll(scratch) // The next build removes the rest after a failure.
	begin := time.Now()
	say(progress, "building cert-manager's controllers from source, once: this takes two to three minutes")
	out := filepath.Join(scratch, "certmanager")
	// The file by its name: it is kept from the packages of this repository by its build
	// constraint.
	if _, err := command(ctx, scratch, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out,
		"main.go"); err != nil {
		return err
	}
	say(progress, "built cert-manager's controllers in "+time.Since(begin).Round(time.Second).String())
	return os.Rename(out, program)
}

// prepare lays out the module: ours, and the custom resource definitions of cert-manager's beside
// it, to be embedded.
func prepare(ctx context.Context, scratch string) error {
	if err := os.MkdirAll(filepath.Join(scratch, "crds"), 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{
		"certmanager.mod": "go.mod", "certmanager.sum": "go.sum",
		"main.go": "main.go",
	} {
		content, err := buildFiles.ReadFile("build/" + from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(scratch, to), content, 0o644); err != nil {
			return err
		}
	}
	if _, err := command(ctx, scratch, "go", "mod", "download", module); err != nil {
		return err
	}
	source, err := command(ctx, scratch, "go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	return copyDefinitions(filepath.Join(strings.TrimSpace(source), "deploy", "crds"), filepath.Join(scratch, "crds"))
}

func copyDefinitions(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "cert-manager.io_*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no custom resource definitions in %s: %w", from, errors.Join(err, fs.ErrNotExist))
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

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0", "GOOS="+runtime.GOOS,
		"GOARCH="+runtime.GOARCH)
	// Interrupted, the go command ends its compilers; killed, it would leave them running.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, errors.Join(context.Cause(ctx), err), end(stderr.String()))
	}
	return string(out), nil
}

func say(w io.Writer, text string) {
	_, _ = io.WriteString(w, "certmanager: "+text+"\n") // Progress is optional.
}

// end returns the last lines of a text.
func end(text string) string {
	const most = 20
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// lock waits for the exclusive lock on a file. The system frees it when the process ends. The
// function that is returned is never nil.
func lock(ctx context.Context, path string) (unlock func() error, err error) {
	nothing := func() error { return nil }
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nothing, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nothing, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nothing, errors.Join(fmt.Errorf("wait for the lock on %s: %w", path, context.Cause(ctx)), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
