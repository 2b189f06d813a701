package apiserver

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

//go:embed guard/run.sh
var runScript []byte

//go:embed guard/watchdog.sh
var watchdogScript string

// guard owns the private directory of one control plane, and ends its processes with this one.
//
// envtest puts its programs into process groups of their own, so Ctrl-C does not reach them. It has
// no option to end them with this process (Pdeathsig), and does not return process ids. So it gets
// scripts that register their process id before they become the program. A small watchdog process
// holds the read end of a pipe. When this process ends, even by SIGKILL, the system closes the
// pipe, and the watchdog kills the registered processes.
type guard struct {
	dir      string
	pipe     io.Closer
	watchdog *exec.Cmd
	shutOnce sync.Once
}

// newGuard starts the watchdog. The caller must call close.
func newGuard(assets string) (*guard, error) {
	dir, err := os.MkdirTemp("", "runtime-watcher-controlplane-")
	if err != nil {
		return nil, err
	}

	g := &guard{dir: dir}
	if err := errors.Join(g.fill(assets), g.watch()); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", dir, err), g.close())
	}

	return g, nil
}

func (g *guard) path(name string) string { return filepath.Join(g.dir, name) }

func (g *guard) fill(assets string) error {
	// A process that is forked in another goroutine while a script is open for writing would hold
	// it open, and executing it would fail with "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return errors.Join(
		os.Symlink(assets, g.path("assets")),
		os.WriteFile(g.path("open"), nil, 0o600),
		os.WriteFile(g.path("etcd"), runScript, 0o700),
		os.WriteFile(g.path("kube-apiserver"), runScript, 0o700),
		os.Mkdir(g.path("etcd-data"), 0o700),
		os.Mkdir(g.path("certs"), 0o700),
	)
}

func (g *guard) watch() error {
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "controlplane-watchdog", g.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of Ctrl-C
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		_ = pipe.Close()
		return err
	}

	g.pipe = pipe
	g.watchdog = cmd
	return nil
}

// shut lets no further process start and kills those that run. It does not wait for their end.
func (g *guard) shut() {
	g.shutOnce.Do(func() {
		_ = os.Remove(g.path("open"))
		for _, pid := range g.pids() {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
}

// pids lists the registered processes, also those that have ended.
func (g *guard) pids() []int {
	content, _ := os.ReadFile(g.path("pids")) // None has registered.
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// close kills the processes that still run, waits for their end, and removes the
// directory.
func (g *guard) close() error {
	g.shut()
	err := awaitExit(g.pids())

	if g.watchdog != nil {
		_ = g.pipe.Close()
		_ = g.watchdog.Wait()
	}

	if rmErr := os.RemoveAll(g.dir); !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}

	return err
}

// awaitExit polls, because it is envtest that waits for its processes.
func awaitExit(pids []int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), exitLimit,
		fmt.Errorf("one of the processes %v still runs %s after it was killed", pids, exitLimit))
	defer cancel()
	return machine.Poll(ctx, func() bool { return !slices.ContainsFunc(pids, running) })
}

func running(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
