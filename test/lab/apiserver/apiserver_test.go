package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestStartFails(t *testing.T) {
	t.Run("program that fails", func(t *testing.T) {
		assets := t.TempDir()
		t.Setenv(AssetsEnv, assets)
		executable(t, filepath.Join(assets, "etcd"), "echo the disk is on fire; exit 3")
		executable(t, filepath.Join(assets, "kube-apiserver"), "")

		_, err := Start(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
			t.Errorf("got %v, want the end of the log", err)
		}
	})

	t.Run("missing definitions", func(t *testing.T) {
		t.Setenv("TMPDIR", t.TempDir()) // Tests of other packages start control planes, too.
		before := privateDirs(t)
		_, err := Start(t.Context(), Options{CRDPaths: []string{"does-not-exist"}})
		if err == nil || !strings.Contains(err.Error(), "does-not-exist") {
			t.Errorf("got %v, want an error that names the path", err)
		}
		if after := privateDirs(t); len(after) > len(before) {
			t.Errorf("directories are left: had %v, have %v", before, after)
		}
	})
}

func privateDirs(t *testing.T) []string {
	t.Helper()

	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "runtime-watcher-controlplane-*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

const dieEnv = "CONTROLPLANE_TEST_DIE"

// dieWithoutStop is the child process of TestNothingOutlivesTheOwner: it starts a control plane,
// reports it, and waits to be killed.
func dieWithoutStop() bool {
	if os.Getenv(dieEnv) == "" {
		return false
	}

	c, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println("error", err)
		return true
	}

	fmt.Println(c.guard.dir, c.guard.pids()[0], c.guard.pids()[1])
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

func TestNothingOutlivesTheOwner(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), dieEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()

	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	line, err := bufio.NewReader(stdout).ReadString('\n')
	// To the whole group, as a terminal does.
	if killErr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil || killErr != nil {
		t.Fatal(err, killErr)
	}

	_ = cmd.Wait()
	var dir string
	pids := make([]int, 2)
	if _, err := fmt.Sscan(line, &dir, &pids[0], &pids[1]); err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	if err := machine.Poll(ctx, func() bool { return !running(pids[0]) && !running(pids[1]) && !exists(dir) }); err != nil {
		t.Errorf("processes %v and directory %s are left: %v", pids, dir, err)
	}
}

func TestMain(m *testing.M) {
	if dieWithoutStop() {
		return
	}
	goleak.VerifyTestMain(m)
}

func TestAssetsGiven(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(AssetsEnv, dir)
	executable(t, filepath.Join(dir, "etcd"), "")

	_, err := Assets(t.Context(), AssetsOptions{})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "file kube-apiserver") {
		t.Errorf("got %v, want an error that names the directory and kube-apiserver", err)
	}

	executable(t, filepath.Join(dir, "kube-apiserver"), "")
	got, err := Assets(t.Context(), AssetsOptions{})
	if err != nil || got != dir {
		t.Errorf("got %q, %v, want %q", got, err, dir)
	}
}

func executable(t *testing.T, path, script string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}
