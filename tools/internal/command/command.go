// Package command contains the parts that the commands in tools share.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// Run calls run with the arguments of the process, and ends its context at an interrupt. It returns
// the exit code: 1 after an error, which it prints with the name, unless that is flag.ErrHelp.
func Run(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}

	fmt.Fprintln(os.Stderr, name+":", err)
	return 1
}

// Output runs cmd and returns its standard output. The error contains all output.
func Output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stdout.String() + "\n" + stderr.String())
		return stdout.String(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said)
	}
	return stdout.String(), nil
}

// Files lists the files below root that git tracks or would add, except those that are deleted in
// the working tree. Names are relative to root, with slashes. Patterns have the syntax of git.
func Files(ctx context.Context, root string, patterns ...string) ([]string, error) {
	args := append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, patterns...)
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := Output(cmd)
	if err != nil {
		return nil, err
	}

	var files []string
	for file := range strings.SplitSeq(out, "\x00") {
		if _, err := os.Lstat(filepath.Join(root, filepath.FromSlash(file))); file != "" && err == nil {
			files = append(files, file)
		}
	}

	return files, nil
}
