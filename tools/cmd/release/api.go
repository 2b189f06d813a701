package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// compare prints the changes of the API since the last release. Incompatible ones need the next
// major version, before v1 the next minor one, and a heading in CHANGELOG.md.
func (r *release) compare(ctx context.Context) error {
	if r.last == "" {
		fmt.Fprintln(r.out, "      there is no release before")
		return nil
	}
	before, err := r.loadLast(ctx)
	if err != nil {
		return err
	}
	incompatible := false
	for _, m := range r.released {
		if _, err := os.Stat(filepath.Join(before, filepath.FromSlash(m.Dir), "go.mod")); err != nil {
			fmt.Fprintf(r.out, "      %s is new\n", m.Dir)
			continue
		}
		report, err := r.difference(ctx, before, m)
		if err != nil {
			return err
		}
		r.printReport(m, report)
		incompatible = incompatible || strings.Contains(report, "Incompatible changes:")
	}
	if incompatible {
		return r.allowIncompatible()
	}
	return nil
}

// loadLast checks the last release out, beside the clone.
func (r *release) loadLast(ctx context.Context) (string, error) {
	dir := filepath.Join(r.scratch, "last")
	_, err := modules.Git(ctx, r.clone.Dir, "worktree", "add", "--quiet", "--detach", dir, "refs/tags/"+r.last)
	return dir, err
}

func (r *release) printReport(m modules.Module, report string) {
	for line := range strings.Lines(report) {
		fmt.Fprintf(r.out, "      %-26s %s\n", m.Dir, strings.TrimSpace(line))
	}
}

// difference compares one module with its last release.
func (r *release) difference(ctx context.Context, before string, m modules.Module) (string, error) {
	old := filepath.Join(r.scratch, strings.ReplaceAll(m.Dir, "/", "-")+".api")
	if _, err := r.api(ctx, before, m, "-m", "-w", old, m.Path); err != nil {
		return "", err
	}
	return r.api(ctx, r.clone.Dir, m, "-m", old, m.Path)
}

// api runs apidiff in a module of a checkout. The workspace of the checkout resolves the siblings.
func (r *release) api(ctx context.Context, checkout string, m modules.Module, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.apidiff, args...)
	cmd.Dir = filepath.Join(checkout, filepath.FromSlash(m.Dir))
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(checkout, "go.work"))
	report, err := command.Output(cmd)
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.Dir, err)
	}
	return report, nil
}

const headingIncompatible = "### Incompatible"

var errIncompatible = errors.New("the API has incompatible changes, see above")

func (r *release) allowIncompatible() error {
	next := semver.Major
	if semver.Major(r.version) == "v0" {
		next = semver.MajorMinor
	}
	if next(r.version) == next(r.last) {
		return fmt.Errorf("%w: want a later version than %s.x", errIncompatible, next(r.last))
	}
	changes, err := r.changes()
	if err != nil {
		return err
	}
	if !strings.Contains(changes, headingIncompatible) {
		return fmt.Errorf("%w: want the heading %q in CHANGELOG.md", errIncompatible, headingIncompatible)
	}
	return nil
}
